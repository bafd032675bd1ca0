"""Files shipped with the package: Spark jobs, DAGs, documentation, and the archive for a cluster's ``--py-files``."""

import hashlib
import marshal
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from difflib import get_close_matches
from importlib import resources
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from types import CodeType

import airflow_paimon
from airflow_paimon.core.errors import InvalidInputError, UnsupportedFeatureError
from airflow_paimon.core.requests.operations import OPERATIONS

__all__ = ["dags_folder", "docs_folder", "job_names", "job_path", "job_summaries", "package_archive"]

# A cluster needs no Airflow, so the layers above these are not shipped. `open_table` of the package is in `notebook`.
_SHIPPED_LAYERS = ("core", "data", "spark", "shown", "cli", "notebook")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
# PEP 552: magic number, flags, and either the source's time and size or its hash; the archive's times say nothing.
_PYC_HEADER = 16
_UNCHECKED_HASH = 0b01
# Later versions write an object that something else holds, too, in another way, so bytes would differ in one process.
_MARSHAL_VERSION = 2


def job_path(name: str) -> Path:
    """Return the file ``spark_jobs/<name>.py`` of a checkout or an installed wheel, for ``spark-submit``.

    Raises ``InvalidInputError`` for a job that doesn't exist.
    """
    if name not in OPERATIONS:
        near = get_close_matches(name, OPERATIONS, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InvalidInputError(f"There is no job {name!r}; {meant}The jobs are {', '.join(job_names())}")
    return _bundled_folder("spark_jobs") / f"{name}.py"


def job_names() -> list[str]:
    """Return the names of all bundled jobs, sorted: there is one for each operation."""
    return sorted(OPERATIONS)


def job_summaries() -> dict[str, str]:
    """Return the summary of each job, by name."""
    return {name: OPERATIONS[name].summary for name in job_names()}


def dags_folder() -> Path:
    """Return the folder of the runbook DAGs, to configure as a DAG bundle; own ones call ``airflow_paimon.dags``."""
    return _bundled_folder("dags")


def docs_folder() -> Path:
    """Return the folder of the documentation's Markdown pages, which the page *Paimon* shows in Airflow."""
    return _bundled_folder("docs")


def package_archive(target: Path) -> Path:
    """Write the archive for ``--py-files`` into the folder ``target`` and return its path.

    It holds the layers that need no Airflow, as they are installed here, each module also as compiled code where Python
    has compiled it: a driver or executor with the same Python starts faster, another one takes the source. The name
    contains a hash of the content, so an existing archive is reused, and an upgrade never changes one that a running
    job still uses.
    """
    files = list(_shipped_files())
    digest = hashlib.sha256()
    for name, data in files:
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    archive = target / f"airflow_paimon-{airflow_paimon.__version__}-{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        target.mkdir(parents=True, exist_ok=True)
        _write_zip(archive, files)
    return archive


def _bundled_folder(name: str) -> Path:
    package = resources.files(airflow_paimon)
    if not isinstance(package, Path):
        raise UnsupportedFeatureError(
            "airflow-paimon runs from a zip file, where spark-submit can't read its jobs; install the wheel unpacked"
        )
    bundled = package / "_bundled" / name
    return bundled if bundled.is_dir() else package.parent / name


def _shipped_files() -> Iterator[tuple[str, bytes]]:
    package = Path(airflow_paimon.__file__).parent
    paths = [package / "__init__.py", package / "execution.py"]
    for layer in _SHIPPED_LAYERS:
        paths += [path for kind in ("*.py", "*.txt") for path in (package / layer).rglob(kind)]
    for path in sorted(paths):
        name, source = path.relative_to(package.parent).as_posix(), path.read_bytes()
        yield name, source
        if path.suffix == ".py" and (compiled := _compiled(path, source, name)) is not None:
            yield f"{name}c", compiled


def _compiled(path: Path, source: bytes, name: str) -> bytes | None:
    """Return the compiled module that Python keeps of a source if it is up to date. Compiling all takes seconds."""
    try:
        cached = Path(cache_from_source(str(path))).read_bytes()
    except OSError:
        return None
    of_source = [int(path.stat().st_mtime), path.stat().st_size]
    flags, *made_of = struct.unpack_from("<3I", cached, len(MAGIC_NUMBER))
    if cached[: len(MAGIC_NUMBER)] != MAGIC_NUMBER or flags or made_of != of_source:
        return None
    code = marshal.dumps(_renamed(marshal.loads(cached[_PYC_HEADER:]), name), _MARSHAL_VERSION)
    return MAGIC_NUMBER + struct.pack("<I", _UNCHECKED_HASH) + source_hash(source) + code


def _renamed(code: CodeType, name: str) -> CodeType:
    """Let tracebacks name the module's file in the archive, and not its path on this machine."""
    constants = tuple(_renamed(c, name) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=name, co_consts=constants)


def _write_zip(archive: Path, files: list[tuple[str, bytes]]) -> None:
    # Two workers may get here at once: each writes its own file, and the last rename wins with the same bytes.
    handle, temporary = tempfile.mkstemp(dir=archive.parent, prefix=f".{archive.name}.")
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as output:
            for name, data in files:
                entry = zipfile.ZipInfo(name, _ZIP_EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                output.writestr(entry, data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, archive)
    except BaseException:
        os.unlink(temporary)
        raise
