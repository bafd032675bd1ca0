"""The Docker engine of this machine, docker/compose.yaml, and the commands with which a page starts it."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

import yaml

from tests.environment import REPO_ROOT

FOLDER = REPO_ROOT / "docker"
COMPOSE_FILE = FOLDER / "compose.yaml"
DOCKERFILE = FOLDER / "Dockerfile"


def compose_file() -> dict[str, Any]:
    """Read the compose file, its variables at their defaults."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE_FILE.read_text())
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def docker(*arguments: str, check: bool = True, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=seconds)
    assert not check or done.returncode == 0, f"docker {arguments[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def missing() -> str | None:
    """Say in a line what this machine lacks to run the containers."""
    try:
        if docker("version", "--format", "{{.Server.Version}}", check=False, seconds=60).returncode != 0:
            return "no Docker engine answers"
        if docker("compose", "version", check=False, seconds=60).returncode != 0:
            return "docker has no compose plugin"
    except FileNotFoundError:
        return "there is no docker command"
    return None


@dataclass(frozen=True)
class Command:
    """A command of a documentation page, and what the page says that it prints."""

    text: str
    prints: str


def commands(page: str) -> list[Command]:
    """Read the commands of a page in their order: what follows a ``$`` in a block of text, until it is complete."""
    found = []
    for block in re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for entry in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = entry.splitlines()
            size = next(n for n in range(1, len(lines) + 1) if _is_complete("\n".join(lines[:n])))
            found.append(Command("\n".join(lines[:size]), "\n".join(lines[size:])))
    return found


def _is_complete(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:  # a quotation or a line goes on
        return False
    return True


def run(command: Command) -> None:
    """Run a page's command in the repository's root; it must print what the page says."""
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=REPO_ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, f"{command.text}\n{done.stdout[-5000:]}{done.stderr[-5000:]}"
    assert command.prints in done.stdout, f"{command.text}\n{done.stdout[-5000:]}"
