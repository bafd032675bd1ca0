"""Rules of checks as DAGs and forms give them: a list, or its text in YAML, of which JSON is a part."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from airflow_paimon.arguments import is_blank, literal
from airflow_paimon.core.errors import InvalidInputError
from airflow_paimon.core.rules.rules import Function, Rule, Sql, parse_rules


def rules_as_json(rules: Any, where: str) -> str | None:
    """Return rules as the JSON that the job takes; None if there are none.

    Raises:
        InvalidInputError: neither a list of rules nor the text of one.
    """
    raw = _raw(rules, where)
    if not raw:
        return None
    parse_rules(raw, where)
    return json.dumps(raw, default=str)


def what_runs(rules: str | None) -> list[dict[str, str]]:
    """Return the SQL and the functions of rules that ``rules_as_json`` has returned, as fields of a form."""
    parsed: tuple[Rule, ...] = parse_rules(json.loads(rules), "rules") if rules is not None else ()
    functions = [{"function": rule.function} for rule in parsed if isinstance(rule, Function)]
    return [*functions, *({"sql": rule.sql} for rule in parsed if isinstance(rule, Sql))]


def _raw(rules: Any, where: str) -> Any:
    if is_blank(rules):
        return None
    if not isinstance(rules, str):
        return [dict(rule) if hasattr(rule, "items") else rule for rule in rules]
    with suppress(InvalidInputError):  # of a template that gives a list
        return literal(where, rules)
    import yaml

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(rules, yaml.SafeLoader)):
            # with a few of them, some lines stand for gigabytes
            raise InvalidInputError(f"{where}: aliases (*name) are not supported; write out what they refer to")
        return yaml.safe_load(rules)
    except RecursionError:
        raise InvalidInputError(f"{where}: it is nested too deeply; a rule has two levels") from None
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise InvalidInputError(
            f"{where}: it must be a list of rules in YAML, each a line such as '- not_null: [amount]'; {said}"
        ) from None
