"""One JVM for all tests of a process; its session is restarted where a test file asks
for another kind of cluster, because a process has one SparkContext at a time.

Everything Spark writes lies under one temporary folder: `spark_files`.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark", reason="machine: no PySpark")
from pyspark.sql import SparkSession  # noqa: E402

from tests.adapters.spark.java import FRUGAL, JAVA, end_java  # noqa: E402

LOCAL = "local[2]"
# Spark starts no copy of a task on the host of the first, so the executors are on two
# addresses of this machine: `local-cluster` has one, and would never speculate.
CLUSTER = "cluster"
HOSTS = ("127.0.0.2", "127.0.0.3")
# Where the daemon of DAEMON lies, and nothing else: tasks shall not import our tests.
PRELOADED = str(Path(__file__).parent / "preloaded")
DAEMON = "demur_daemon"


class _Cluster:
    """A standalone master and a worker for each host, inside the driver's JVM."""

    def __init__(self, folder: Path) -> None:
        pyspark.SparkContext._ensure_initialized()
        jvm, gateway = pyspark.SparkContext._jvm, pyspark.SparkContext._gateway
        deploy = jvm.org.apache.spark.deploy
        conf = jvm.org.apache.spark.SparkConf()
        conf.set("spark.shuffle.service.enabled", "false")
        conf.set("spark.master.rest.enabled", "false")
        conf.set("spark.local.dir", str(folder / "local"))
        started = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)
        self._running = [started._1()]
        self.url = f"spark://127.0.0.1:{started._1().address().port()}"
        urls = gateway.new_array(jvm.java.lang.String, 1)
        urls[0] = self.url
        for number, host in enumerate(HOSTS):
            worker = deploy.worker.Worker.startRpcEnvAndEndpoint(
                host,
                0,
                0,
                1,  # core
                1024,  # MiB
                urls,
                str(folder / "work"),
                jvm.scala.Option.apply(number),
                conf,
                jvm.scala.Option.empty(),
            )
            self._running.append(worker)

    def stop(self) -> None:
        for part in reversed(self._running):
            part.shutdown()
            part.awaitTermination()


class _Server:
    """The one session of this process, and the folder it may write to."""

    def __init__(self) -> None:
        end_java()  # a page of the documentation may have left one
        self.folder = Path(tempfile.mkdtemp(prefix="demur-spark-"))
        self.master: str | None = None
        self.session: SparkSession | None = None
        self.cluster: _Cluster | None = None
        self._environment = dict(os.environ)
        os.environ |= {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [PRELOADED, os.environ.get("PYTHONPATH")])
            ),
            # A cluster starts the JVM before there is a session to configure it.
            "PYSPARK_SUBMIT_ARGS": (
                "--driver-memory 1g --driver-java-options"
                f' "-Djava.io.tmpdir={self.folder / "tmp"} {JAVA}" pyspark-shell'
            ),
        }
        for name in ("local", "events", "warehouse", "tmp", "work"):
            (self.folder / name).mkdir()

    def serve(self, master: str) -> SparkSession:
        # A page of the documentation that runs between two files ends what it finds.
        stopped = self.session is None or self.session.sparkContext._jsc is None
        if self.master != master or stopped:
            self.stop()
            settings = FRUGAL | {
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": JAVA,
                "spark.local.dir": str(self.folder / "local"),
                "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": (self.folder / "events").as_uri(),
                "spark.sql.shuffle.partitions": "2",
                "spark.python.daemon.module": DAEMON,
                "spark.executorEnv.DEMUR_PRELOADED": (
                    "demur.adapters.spark.drawing"
                    + " demur.adapters.spark.clustering" * (master == LOCAL)
                ),
                "spark.ui.showConsoleProgress": "false",
                "spark.log.level": "OFF",
            }
            if master == CLUSTER:
                self.cluster = _Cluster(self.folder)
                settings |= {
                    "spark.speculation": "true",
                    "spark.speculation.interval": "50ms",
                    "spark.speculation.multiplier": "1.2",
                    "spark.speculation.quantile": "0.3",
                    "spark.task.maxFailures": "8",
                }
            url = self.cluster.url if self.cluster else master
            builder = SparkSession.builder.master(url).appName("demur tests")
            for key, value in settings.items():
                builder = builder.config(key, value)
            self.session, self.master = builder.getOrCreate(), master
        assert self.session is not None
        return self.session

    def stop(self) -> None:
        # A page that ran in between has ended this Java, and all that was in it.
        if self.session is not None and self.session.sparkContext._jsc is not None:
            self.session.stop()
            if self.cluster is not None:
                self.cluster.stop()
        self.session = self.master = self.cluster = None

    def close(self) -> None:
        self.stop()
        end_java()
        for name in set(os.environ) - set(self._environment):
            del os.environ[name]
        os.environ.update(self._environment)
        shutil.rmtree(self.folder, ignore_errors=True)


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def _server():
    if shutil.which("java") is None:
        pytest.skip("machine: no Java")
    server = _Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def spark(_server):
    """A session with two threads in this process's JVM."""
    return _server.serve(LOCAL)


@pytest.fixture(scope="module")
def cluster(_server):
    """A session with two executor processes, and speculation on."""
    return _server.serve(CLUSTER)


@pytest.fixture(scope="session")
def spark_files(_server):
    """Where Spark writes: event logs, spills, broadcasts, the workers' folders."""
    return _server.folder
