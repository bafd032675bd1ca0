"""Submission for real: what the command line holds, what a job without a result means, and who dies with whom."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_paimon.core.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    PaimonError,
    UnsafeOperationError,
    UnsupportedFeatureError,
)
from airflow_paimon.core.requests.arguments import build_request
from airflow_paimon.core.requests.requests import Request
from airflow_paimon.core.store.memory import MemoryStore
from airflow_paimon.hooks._job_files import JobFolder, ResultFile, is_of_same_task
from airflow_paimon.hooks._kubernetes import (
    creates_no_pod,
    default_namespace,
    deployed_pod,
    is_upload_folder,
    refusal,
    upload_folder,
)
from airflow_paimon.hooks._yarn import tags_of
from airflow_paimon.hooks.cluster_job import LEFT_RESULT
from airflow_paimon.hooks.spark_job import SparkJobHook, _request_key
from tests.airflow.conftest import set_connection
from tests.airflow.processes import running, wait_until
from tests.airflow.yarn_stand_in import yarn_stand_in
from tests.core.tables import append, make_table
from tests.loopback import free_port
from tests.stores import FaultStore

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_home", "java_home")]


def request(warehouse: Path, operation: str = "check_table", **values: Any) -> Request:
    return build_request(operation, {"warehouse": str(warehouse), "table": "d.t", **values})


def run(hook: SparkJobHook, asked: Request, **more: Any) -> dict[str, Any]:
    return hook.run_job(asked, result_name="dag/run/task/try1.json", results_folder=f"{asked.warehouse}/_r", **more)


def test_a_master_that_is_not_there_is_named_before_anything_is_submitted(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of several that is there is enough."""
    first, second = free_port(), free_port()
    set_connection(monkeypatch, "away", "spark", host=f"spark://127.0.0.1:{first},127.0.0.1", port=second)
    hook = SparkJobHook("away", options={"spark_binary": script(tmp_path, f"touch {tmp_path}/started; exit 3")})
    said = rf"'away': no Spark master .*{first}: .*refused; .*{second}: .*refused"
    with pytest.raises(PaimonError, match=said) as caught:
        run(hook, request(warehouse))
    assert caught.value.retryable and not (tmp_path / "started").exists()
    with socket.create_server(("127.0.0.1", second)), pytest.raises(PaimonError):
        run(hook, request(warehouse))
    assert (tmp_path / "started").exists()


def script(folder: Path, text: str) -> str:
    """A stand-in for the spark-submit binary, for what the real one can't be made to do."""
    path = folder / "spark-submit"
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_missing_connection_is_an_error_not_yarn(warehouse: Path) -> None:
    with pytest.raises(InvalidInputError, match="no Airflow connection 'nowhere'"):
        SparkJobHook("nowhere")


def test_a_connect_server_is_refused_before_anything_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    set_connection(monkeypatch, "connect", "spark_connect", host="127.0.0.1", port=15002)
    with pytest.raises(InvalidInputError, match=r"'connect' is not a Spark connection: it is of type 'spark_connect'"):
        SparkJobHook("connect")


def test_options_are_those_of_airflows_hook(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="driver_memery"):
        SparkJobHook(options={"driver_memery": "1g"})
    with pytest.raises(InvalidInputError, match="yarn_track_via_rm_api"):  # it would not wait for the end
        SparkJobHook(options={"yarn_track_via_rm_api": True})
    for master in ("local[1]", "spark://master:7077"):
        set_connection(monkeypatch, "spark_default", "spark", host=master)
        with pytest.raises(UnsupportedFeatureError, match=rf"the master is {re.escape(master)}.*deploy mode client"):
            SparkJobHook(options={"deploy_mode": "cluster"})


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("ending", "error", "retryable"),
    [
        ("exit 0", OutcomeUnknownError, True),
        ("exit 1", PaimonError, True),
        ("exit 2", InvalidInputError, False),
        ("exit 3", ConflictError, True),
        ("exit 4", UnsafeOperationError, False),
        ("exit 5", OutcomeUnknownError, True),
        ("exit 143", OutcomeUnknownError, True),
        ("kill -9 $$", OutcomeUnknownError, True),
    ],
)
def test_what_an_end_without_a_result_means(
    warehouse: Path, tmp_path: Path, ending: str, error: type[PaimonError], retryable: bool
) -> None:
    hook = SparkJobHook(options={"spark_binary": script(tmp_path, ending)})
    with pytest.raises(PaimonError) as raised:
        run(hook, request(warehouse))
    assert type(raised.value) is error
    assert raised.value.retryable is retryable


def test_a_binary_that_is_not_there(warehouse: Path) -> None:
    with pytest.raises(PaimonError, match=r"not found \(exit code 127\): .*airflow-paimon\[spark\]"):
        run(SparkJobHook(options={"spark_binary": "/nowhere/spark-submit"}), request(warehouse))


def test_secrets_are_in_private_files_and_nowhere_else(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append(make_table(warehouse), "1")
    seen = tmp_path / "seen"
    recorder = script(
        tmp_path,
        f'printf "%s\\n" "$@" > {seen}.argv; env > {seen}.env\n'
        f'for a in "$@"; do case $a in *once=*) f=${{a#*=}};; *.properties) f=$a;; *) continue;; esac\n'
        f'  stat -c "%a %n" $f >> {seen}.modes; stat -c "%a" $(dirname $f) >> {seen}.folders\n'
        f"  cp $f {seen}.$(basename $f); done\n"
        f'exec spark-submit "$@"',
    )
    defaults = tmp_path / "conf"
    defaults.mkdir()
    (defaults / "spark-defaults.conf").write_text("spark.app.name from-the-defaults\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(defaults))
    caplog.set_level("INFO")
    hook = SparkJobHook(
        conf={"spark.hadoop.fs.s3a.secret.key": "conf-secret", "spark.ui.enabled": "false"},
        options={"spark_binary": recorder},
    )
    result = run(hook, request(warehouse, storage_options={"key": "option-key-id", "secret": "option-secret"}))
    assert result["details"]["ok"] is True
    argv = Path(f"{seen}.argv").read_text()
    assert "spark.ui.enabled=false" in argv
    for secret in ("conf-secret", "option-secret", "option-key-id"):
        assert secret not in argv
        assert secret not in Path(f"{seen}.env").read_text()
        assert secret not in caplog.text
        assert secret not in json.dumps(result)
    modes = Path(f"{seen}.modes").read_text().split()[::2]
    assert modes == ["600", "600"]
    assert set(Path(f"{seen}.folders").read_text().split()) == {"700"}
    assert json.loads(Path(f"{seen}.storage-options.json").read_text())["secret"] == "option-secret"
    properties = Path(f"{seen}.spark.properties").read_text()
    assert "spark.hadoop.fs.s3a.secret.key conf-secret" in properties
    assert "from-the-defaults" in properties
    assert not list(Path(tempfile.gettempdir()).glob(f"airflow-paimon-job-*-{os.getpid()}-*"))


def test_secrets_under_long_names_and_in_variables_are_private_too(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_connection(monkeypatch, "on_yarn", "spark", host="yarn")
    seen = tmp_path / "seen"
    recorder = script(
        tmp_path,
        f'printf "%s\n" "$@" > {seen}.argv; env > {seen}.env\n'
        f'for a in "$@"; do case $a in *.properties) cp $a {seen}.properties;; esac; done; exit 2',
    )
    azure = "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net"
    options = {"spark_binary": recorder, "env_vars": {"LAKE_SECRET": "variable-secret", "LAKE_REGION": "north"}}
    with pytest.raises(InvalidInputError, match="without a result"):
        run(SparkJobHook("on_yarn", conf={azure: "azure-secret"}, options=options), request(warehouse))
    argv = Path(f"{seen}.argv").read_text()
    assert "spark.yarn.appMasterEnv.LAKE_REGION=north" in argv
    assert "azure-secret" not in argv and "variable-secret" not in argv
    assert {f"{azure} azure-secret", "spark.yarn.appMasterEnv.LAKE_SECRET variable-secret"} <= set(
        Path(f"{seen}.properties").read_text().splitlines()
    )
    assert "LAKE_SECRET=variable-secret" in Path(f"{seen}.env").read_text()


def test_cluster_mode_ships_files_and_reads_the_result_from_the_results_folder(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(make_table(warehouse), "1")
    with yarn_stand_in(tmp_path) as cluster:
        set_connection(monkeypatch, "yarn", "spark", **cluster.connection)
        hook = SparkJobHook("yarn", options=cluster.submits)
        result = run(hook, request(warehouse, storage_options={"key": "some-key-id"}))
        assert result["details"]["ok"] is True
        assert list(tmp_path.glob("container-*/storage-options.json"))
        assert not list((warehouse / "_r").rglob("*.json")), "the result file stays behind"


@pytest.mark.parametrize("status", [401, 403])
def test_nothing_is_submitted_to_a_yarn_that_does_not_answer(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Nobody could watch or end the job. A refusal also ends a wait, while one that is away may come back."""
    asked, where = request(warehouse, operation_id="o"), {"result_name": "r.json", "results_folder": f"{warehouse}/_r"}
    with yarn_stand_in(tmp_path) as cluster:
        script(tmp_path, f"echo >> {tmp_path}/submitted; echo Submitted application application_1_1")
        set_connection(monkeypatch, "yarn", "spark", **cluster.connection)
        hook = SparkJobHook("yarn", options=cluster.submits)
        job = hook.submit_job(asked, **where)
        result = job.result_file(f"{warehouse}/_r", None)
        watch = hook.watch(job, result)
        cluster.refuses = status
        with pytest.raises(PaimonError, match=rf"refuses to answer \({status} .* requests-kerberos") as refused:
            watch.poll()
        assert refused.value.retryable, "a retry takes the driver over as soon as it may"
        with pytest.raises(PaimonError, match=rf"d\.t: nothing was submitted: .*refuses to answer \({status} "):
            SparkJobHook("yarn", options=cluster.submits).run_job(asked, **where)
    assert [watch.poll() for _ in range(4)] == [None] * 4
    with pytest.raises(PaimonError, match=r"d\.t: nothing was submitted: .*gives no answer"):
        SparkJobHook("yarn", options=cluster.submits).submit_job(asked, **where)
    result.store.create(result.name, b"{}")
    assert watch.poll() == LEFT_RESULT
    assert (tmp_path / "submitted").read_text() == "\n", "there is one driver"


def test_folders_of_killed_workers_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with JobFolder() as mine:
        own = mine.path.name.split("-")
    abandoned, elsewhere = (
        tmp_path / "-".join([*own[:3], host, str(ended.pid), "abc"]) for host in (own[3], "another0")
    )
    for folder in (abandoned, elsewhere):
        folder.mkdir()
        (folder / "storage-options.json").write_text("{}")
    with JobFolder() as mine:
        assert not abandoned.exists()
        assert stat.S_IMODE(mine.path.stat().st_mode) == 0o700
        with JobFolder():
            assert mine.path.exists()
    assert list(tmp_path.iterdir()) == [elsewhere], "what a container with the same folder may still be using"


def _both_drivers(warehouse: Path) -> bool:
    commands = running(f"--warehouse={warehouse}").values()
    jvm = [c for c in commands if "org.apache.spark.deploy.SparkSubmit" in c]
    python = [c for c in commands if "org.apache.spark.deploy.SparkSubmit" not in c and "/bin/bash" not in c]
    return bool(jvm) and bool(python)


def test_on_kill_ends_the_driver_within_five_seconds(stuck: Path) -> None:
    hook = SparkJobHook()
    asked = build_request("check_table", {"warehouse": str(stuck), "table": "stuck.t"})
    failures: list[PaimonError] = []

    def work() -> None:
        try:
            run(hook, asked)
        except PaimonError as error:
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: _both_drivers(stuck), "the driver is up", 180)
    hook.on_kill()
    wait_until(lambda: not running(f"--warehouse={stuck}"), "no driver is left", 5)
    worker.join(500)
    assert [type(f) for f in failures] == [OutcomeUnknownError]


def test_a_result_file_that_can_not_be_deleted_is_a_result_all_the_same() -> None:
    store = FaultStore(MemoryStore("results-of-jobs"), fail_at=2, error=OSError("read-only now"))
    store.create("r.json", b'{"changed": true}')
    assert ResultFile("memory://results/r.json", store, "r.json").take() == {"changed": True}
    assert [method for method, _ in store.mutations] == ["create", "delete"]


def test_a_retry_on_yarn_takes_only_the_result_of_the_same_request() -> None:
    """The DAG's file may have changed since: what an earlier try still runs is then another correction."""

    def tags(sql: str, operation_id: str | None = "id", storage: str = "a") -> list[str]:
        request = build_request(
            "correct_branch", {**values, "operation_id": operation_id, "storage_options": {"key": storage}}
        )
        return tags_of(_request_key(request, {"sql": sql}), "results/try-1.json")

    values = {"warehouse": "/w", "table": "d.t", "branch": "fix", "sql": "sql"}
    same = tags("SELECT 1")
    assert same[1] == "airflow-paimon-result-try-1"
    assert tags("SELECT 1", storage="b") == same, "keys that were renewed change nothing"
    assert tags("SELECT 2")[0] != same[0] != tags("SELECT 1", "other")[0]
    assert tags("SELECT 1", None) == []


def test_kubernetes_needs_the_client_of_its_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it Airflow's own hook ends with a ``NameError``."""
    monkeypatch.setitem(sys.modules, "airflow.providers.cncf.kubernetes.kube_client", None)
    set_connection(monkeypatch, "spark_default", "spark", host="k8s://https://k", extra={"deploy-mode": "cluster"})
    with pytest.raises(InvalidInputError, match="install apache-airflow-providers-cncf-kubernetes on the workers"):
        SparkJobHook("spark_default")


def test_what_spark_submit_says_of_kubernetes(tmp_path: Path) -> None:
    deployed = "INFO Client: Deployed Spark application a b with application ID spark-1 and submission ID"
    assert deployed_pod(f"{deployed} my-jobs:a-b-1-driver into Kubernetes") == "a-b-1-driver"
    assert deployed_pod("Waiting for application a with submission ID n:a-driver to finish...") is None
    said = 'pods is forbidden: User "u.v" cannot create resource "pods" in API group "" in the namespace "my-jobs"'
    assert refusal(f"Exception: Failure executing: POST at: https://k/. Message: {said}. Received status: x") == said
    assert refusal("all is well") is None
    assert (
        creates_no_pod(said) and not creates_no_pod(said.replace('"pods"', '"configmaps"')) and not creates_no_pod(None)
    )
    settings = tmp_path / "spark-defaults.conf"
    assert default_namespace(None) == default_namespace(settings) == "default"
    settings.write_text("spark.a b\n  spark.kubernetes.namespace   night\n#spark.kubernetes.namespace no\n")
    assert default_namespace(settings) == "night"


def test_what_an_earlier_try_says_of_itself_is_looked_at() -> None:
    """It is read, and deleted, with the rights of the connection: who may label a pod must not name any other file."""
    own = "dag/run/task/0a1b2c3d-map-1-max2-try3.json"
    assert is_of_same_task("dag/run/task/0a1b2c3d-map-1-max2-try1.json", own)
    for other in (
        "dag/run/task/0a1b2c3d-map-1-max0-try1.json", "dag/run/task/ffffffff-map-1-max2-try1.json", "try1.json",
        "dag/run/task/../other/0a1b2c3d-map-1-max2-try1.json", "dag/run/task/0a1b2c3d-map-1-max2-try1/x.json", "",
    ):  # fmt: skip
        assert not is_of_same_task(other, own), other

    for path in ("s3a://lake/uploads", "s3a://lake/uploads/"):
        assert is_upload_folder(str(upload_folder(path)), path)
    name = "airflow-paimon-" + "0" * 32
    for folder in (
        "s3a://lake/warehouse", f"s3a://lake/uploads/x/{name}", f"s3a://lake/uploads/../{name}", f"/{name}", name,
        f"s3a://lake/uploads/{name}/..", f"s3a://lake/uploads/{name[:-1]}", f"s3a://lake/uploads/{name}\n", "",
    ):  # fmt: skip
        assert not is_upload_folder(folder, "s3a://lake/uploads"), folder
    assert not is_upload_folder(f"/tmp/{name}", None)


def test_what_is_killed_is_not_submitted(warehouse: Path, tmp_path: Path) -> None:
    hook = SparkJobHook(options={"spark_binary": script(tmp_path, f"touch {tmp_path}/submitted")})
    hook.on_kill()
    with pytest.raises(PaimonError, match=r"check_table on d\.t: the task was killed before it was submitted"):
        run(hook, request(warehouse))
    assert not (tmp_path / "submitted").exists()
