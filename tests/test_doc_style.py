"""The user pages, forms, ``--help`` and errors are written in the plain English of docs/contributing/style.md."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_paimon.core.requests.operations import OPERATIONS

ROOT = Path(__file__).parents[1]
LONGEST_SENTENCE = 35
LONGEST_LINE = 120
LONGEST_PAGE = 800  # words outside of tables and code
LISTS = ("troubleshooting.md", "limits.md")  # one section for each error, one item for each limit
_THINGS = "files?|settings?|options?|servers?|tasks?|results?|fields?|logs?|pages?|tables?|metadata|commits?|errors?"
# What to write instead is the message of the failure.
BANNED = {
    r"(?:^|[.:;] )(?-i:Of) (?:a|an|the|several|two|these|those|what|each|some) ": "start with the subject",
    r"\b(?:is|are|was|were|be) told\b|\btells apart\b": "report, notify, identify, distinguish",
    r"\bcan(?:'t|not) be (?:told|known)\b": "cannot determine whether",
    r"\b(?:takes?|taken|took|taking) (?:\w+ ){0,3}back\b": "revert, undo",
    r"\b(?:made|written|built|created|read) (?:anew|again)\b|\banew\b": "recreate, rebuild, rewrite",
    r"\bwhoever\b|\bsomebody\b|\bnobody\b|\beverybody\b": "name the role: the approver, other writers",
    r"\bis none\b|\bare none\b|\bnone of its own\b": "is not a, does not have",
    r"\blook-ups?\b": "command, inspection command",
    r"\b(?:lands?|landed|landing)\b": "succeed, commit",
    r"\b(?:stands|lies) (?:in|at|on|there|here|beside)\b": "is in, exists",
    r"\bbesides\b|\bbeside (?:it|them|this|that)\b": "also, at the same time",
    r"\bfour eyes\b(?! )": "four-eyes rule",
    rf"\b(?:{_THINGS}) says?\b": "shows, specifies, reports, contains",
    r"\bat once\b": "immediately, or at the same time",
    r"\bmends?\b|\bfares?\b": "fixes, health",
    r"\bgo(?:es)? on\b|\bwent on\b": "continue",
    r"\bby the way\b|\bas well as may be\b|\bwhat becomes of\b": "say it directly",
    r"\btext(?:s)? of (?:numbers|characters)\b": "string",
}


# Of the code's texts also these: a page may tell a story, a message names a cause and a way out.
BANNED_IN_ERRORS = BANNED | {
    r"\b(?:says?|said|saying|tells?|told|speaks?)\b": "specify, report, show, determine",
    r"\btexts\b|\b(?:a|as|one|the) text\b": "string",
    r"(?<!there )\b(?:is|are|be) no\b(?! longer)": "is not a",
    r"\bgone\b": "deleted, expired, missing",
    r"\blook(?:s|ed|ing)?\b(?! like)": "check, search",
    r"\bstands?\b|\bstood\b": "is, is in, exists",
    r"\bgo(?:es)? on\b": "continue",
    r"\bholds\b|\b(?:must|can't|not|to) hold\b": "contain, have; hold is a legal hold",
    r"(?<!')\btries\b|\b(?:a|another|earlier|last|this|that) try\b": "attempt",
    r"\banybody\b": "name the role: another user, another process",
    r"\b(?:it is|is it) (?:not )?known whether\b|\bcan't tell\b": "cannot determine whether",
    r"\bbesides?\b|\bfor want of\b": "also, at the same time; lack of",
    r"\bembedded engine\b": "built-in engine",
    r"\bFour eyes\b|\bfour eyes\b": "four-eyes rule, a second person",
    r"\bof (?:its|their|one's) own\b": "its own, separate",
    r"\b(?:is|are|was|were) (?:not )?there\b|\b(?:isn't|aren't) there\b": "exists, does not exist",
}
LONGEST_ERROR = 220
FEWEST_WORDS = 4
CODE = re.compile(
    r"^\s*(?:SELECT|UPDATE|DELETE|MERGE|INSERT|CREATE|ALTER|DROP|CALL|WITH|WHERE)\b|;$|\b(?:java|lacking)\b"
)
# Arguments of the command line alone.
ONLY_FLAGS = ("help", "storage-options", "storage-options-once")


def user_pages() -> list[Path]:
    docs = ROOT / "docs"
    return [ROOT / "README.md", *(p for p in sorted(docs.rglob("*.md")) if "contributing" not in p.parts)]


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of text with its number: no code, no tables, no headings."""
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith(("```", ":::")):
            fenced = not fenced and line.lstrip() != ":::"
        elif not fenced and not line.startswith(("    ", "#", "|", "![")):
            yield number, line


def sentences(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the sentences of paragraphs and list items. Code and the address of a link count as one word."""
    start, text = 0, ""
    for number, line in [*prose(page), (0, "")]:
        if not line.strip() or re.match(r"\s*(?:[-*]|\d+\.) ", line):
            yield from ((start, s) for s in re.split(r"(?<=[.!?:])\)?\**\s+", text) if s)
            start, text = number, ""
        text += " " + line.strip()
    yield from ()


def plain(text: str) -> str:
    """Leave out what is not prose: code, targets of links, and in italics the titles of forms and quoted messages."""
    text = re.sub(r"\]\([^)]*\)", "", re.sub(r"`[^`]*`", "code", text))
    return re.sub(r"(?<!\*)\*(?!\*)[^*]+\*(?!\*)", "title", text)


def faults(page: Path) -> list[str]:
    found = [f"line {n}: {len(line)} characters" for n, line in prose(page) if len(line) > LONGEST_LINE]
    for number, sentence in sentences(page):
        words = plain(sentence).split()
        if len(words) > LONGEST_SENTENCE:
            found.append(f"line {number}: a sentence of {len(words)} words: {' '.join(words[:8])} ...")
        found += [
            f"line {number}: {m[0]!r}: write {better}"
            for pattern, better in BANNED.items()
            for m in re.finditer(pattern, plain(sentence), re.IGNORECASE)
        ]
    return found


def test_pages_are_in_plain_english() -> None:
    assert [f"{page.relative_to(ROOT)}: {fault}" for page in user_pages() for fault in faults(page)] == []


def test_a_page_is_short() -> None:
    lengths = {page.name: sum(len(line.split()) for _, line in prose(page)) for page in user_pages()}
    assert {name: words for name, words in lengths.items() if words > LONGEST_PAGE and name not in LISTS} == {}


def wrong_words(text: str, banned: Mapping[str, str] = BANNED) -> list[str]:
    found = ((pattern, re.search(pattern, text, re.IGNORECASE)) for pattern in banned if "(?-i:Of)" not in pattern)
    return [f"{match[0]!r} in {text[:60]!r}: write {banned[pattern]}" for pattern, match in found if match]


def test_the_help_of_jobs_is_in_plain_english() -> None:
    for request in {operation.request for operation in OPERATIONS.values()}:
        texts = [str(f.metadata.get("help", "")) for f in dataclasses.fields(request)]
        assert any(texts), request
        assert [fault for text in texts for fault in wrong_words(text)] == []
        described = re.split(r"(?<=[.!?:])\s+", plain(inspect.cleandoc(request.__doc__ or "").replace("``", "`")))
        assert [fault for sentence in described for fault in wrong_words(sentence, BANNED_IN_ERRORS)] == []
        assert [s for s in described if len(s.split()) > LONGEST_SENTENCE] == []


def literal(node: ast.AST) -> str:
    """Return the words that a message has in the code. What is put into it counts as three letters."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "..."
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return literal(node.left) + literal(node.right)
    if isinstance(node, ast.FormattedValue):
        return literal(node.value) if isinstance(node.value, ast.IfExp) else "..."
    if isinstance(node, ast.IfExp):
        return max(literal(node.body), literal(node.orelse), key=len)
    return "..."


def own_texts(module: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the texts of a module that users may read, each with its line, and whether an error is made of it.

    Those are literals of a few words, but no docstrings and no code in another language.
    """
    tree = ast.parse(module.read_text(encoding="utf-8"))
    docstrings = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, in_error = waiting.pop()
        if id(node) in docstrings:
            continue
        is_text = isinstance(node, ast.JoinedStr | ast.Constant) or (isinstance(node, ast.BinOp) and literal(node))
        words = len(re.findall(r"[A-Za-z']+", text := literal(node))) if is_text else 0
        if words >= FEWEST_WORDS and not CODE.search(text):
            yield node.lineno, text, in_error  # type: ignore[attr-defined]
        called = getattr(node, "func", None)  # of a call; its last name is that of the class
        is_error = str(getattr(called, "attr", getattr(called, "id", ""))).endswith(("Error", "Exception"))
        for child in ast.iter_child_nodes(node):
            if not (words and isinstance(child, ast.Constant)):
                waiting.append((child, is_error))


COMMAND = re.compile(rf"(?:^|\b(?:run|job|{'|'.join(OPERATIONS)})\b[^-;]{{0,24}}[ (])(?:--[a-z-]+(?: [^\s-]\S*)*\s*)+")


def wrong_flags(text: str) -> list[str]:
    """Return flags without the name of their argument, which a user of operators and Python needs."""
    flags = re.finditer(r"(?:(\w+)(?:=\w+)? \()?--([a-z][a-z-]+)", re.sub(r"\S* --help", "", text))
    wrong = [f for f in flags if (f[1] or "").rstrip("_") != f[2].replace("-", "_") and f[2] not in ONLY_FLAGS]
    commands = [c.span() for c in COMMAND.finditer(text)]
    return [f[0] for f in wrong if not any(start <= f.start() < end for start, end in commands)]


def faults_of_texts(module: Path) -> Iterator[str]:
    for line, text, in_error in own_texts(module):
        where = f"{module.relative_to(ROOT)}:{line}: "
        if in_error and len(text) > LONGEST_ERROR:
            yield f"{where}{len(text)} characters: put what is not the fault, its effect and the way out into details"
        for pattern, better in BANNED_IN_ERRORS.items():
            yield from (f"{where}{m[0]!r}: write {better}" for m in re.finditer(pattern, text, re.IGNORECASE))
        if "cli" not in module.parts and module.name not in ("requests.py", "arguments.py"):  # those are of flags
            yield from (f"{where}{flag}: write argument (--flag)" for flag in wrong_flags(text))


def test_errors_forms_and_log_lines_are_in_plain_english() -> None:
    modules = sorted((ROOT / "airflow_paimon").rglob("*.py"))
    assert [fault for module in modules for fault in faults_of_texts(module)] == []
