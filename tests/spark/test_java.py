"""Finding a Java, with small programs that answer as a `java` does."""

from pathlib import Path

import pytest

from airflow_paimon.core.errors import NotFoundError
from airflow_paimon.spark.java import ensure_java, find_java


def put_java(home: Path, version: str) -> Path:
    """A `java` that says it is of this version and lives in `home`."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    properties = f"    java.home = {home}\\n    java.specification.version = {version}\\n"
    executable.write_text(f"#!/bin/sh\nprintf '{properties}' >&2\n")
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, on_path = put_java(tmp_path / "named", "21"), put_java(tmp_path / "on_path", "17")
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert find_java() == named


@pytest.mark.parametrize(("version", "taken"), [("1.8", False), ("11", False), ("17", True), ("25", True)])
def test_only_17_and_newer_will_do(version: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = put_java(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == (home if taken else None)


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(put_java(tmp_path / "old", "11")))
    newer = put_java(tmp_path / "newer", "17")
    monkeypatch.setenv("PATH", str(newer / "bin"))
    assert find_java() == newer


def test_a_wrapper_on_the_path_tells_the_home_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = put_java(tmp_path / "real", "17")
    wrapper = put_java(tmp_path / "shims", "17") / "bin" / "java"
    wrapper.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    monkeypatch.setenv("PATH", str(wrapper.parent))
    assert find_java() == home


def test_a_java_that_was_fetched_before_is_used(tmp_path: Path) -> None:
    fetched = put_java(tmp_path / "fetched" / "jdk-17.0.15+6", "17")
    assert find_java() is None
    assert ensure_java(tmp_path / "fetched") == fetched


def test_no_java_and_none_to_fetch_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A port of this machine where nobody listens stands for a network without the download server.
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(NotFoundError, match=r"Java 17 or newer.*apt-get install openjdk-17.*JAVA_HOME") as caught:
        ensure_java(tmp_path / "java")
    assert "\n" not in str(caught.value)
