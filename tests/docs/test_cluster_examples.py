"""The examples for Slurm and Kubernetes: what can be read without a cluster."""

import re
import subprocess

import pytest

from tests.docs.blocks import ROOT

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / "examples" / "clusters"


def parts(text):
    return {part["kind"]: part for part in yaml.safe_load_all(text)}


def fits(text):
    """Whether the pods are as many as the program expects, and found by their names."""
    found = parts(text)
    job, service = found["Job"], found["Service"]
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    said = re.search(
        r"train\.py (\S+)-0\.(\S+):(\d+) (\d+) \"\$JOB_COMPLETION_INDEX\"",
        container["args"][0],
    )
    name, domain, port, count = said.groups()
    spec = job["spec"]
    return (
        name == job["metadata"]["name"]
        and domain == service["metadata"]["name"] == pod["subdomain"]
        and int(count) == spec["completions"] == spec["parallelism"]
        and spec["completionMode"] == "Indexed"
        and service["spec"]["clusterIP"] == "None"
        and service["spec"]["selector"] == {"job-name": name}
        and int(port) == container["ports"][0]["containerPort"]
    )


def test_the_pods_of_kubernetes_find_each_other():
    text = (FOLDER / "kubernetes.yaml").read_text()
    assert fits(text)
    assert not fits(text.replace("completions: 8", "completions: 7"))
    assert not fits(text.replace("subdomain: private-run", "subdomain: other"))


def test_the_script_for_slurm_is_bash_and_names_its_process():
    path = FOLDER / "slurm.sh"
    assert subprocess.run(["bash", "-n", path]).returncode == 0
    text = path.read_text()
    assert '"$COORDINATOR" "$SLURM_NTASKS" "$SLURM_PROCID"' in text
    assert re.findall(r"^#SBATCH --(\S+?)=", text, re.M)[:2] == ["job-name", "nodes"]
