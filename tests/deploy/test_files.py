"""The ways to run it, each by the checker of its own world."""

import functools
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from megatron_monitor.cli import main as cli
from megatron_monitor.config import load
from megatron_monitor.identity.naming import named
from tests.conftest import loaded
from tests.deploy.conftest import DEPLOY, StartPrometheus, environment
from tests.deploy.test_rules import tool
from tests.programs import answers, free_port, get, slack, wait

ROOT = DEPLOY.parent
SCRIPTS = sorted([*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch"), ROOT / ".ci" / "run", ROOT / ".ci" / "helm"])
ITERATION = " iteration 1/1000 | consumed samples: 1 | elapsed time per iteration (ms): 100.0 | lm loss: 2.0E+00 |\n"
OLDEST_KUBERNETES, NEWEST_KUBERNETES = "1.29", "1.34"
UNITS = [
    "megatron-monitor.service", "megatron-monitor-receiver.service", "megatron-monitor.user.service",
    "megatron-monitor-remediator.service",
]  # fmt: skip
Objects = dict[tuple[str, str, str], dict[str, Any]]


# --- systemd ----------------------------------------------------------------------------------------------------------


def unit(name: str, directory: Path) -> Path:
    """A copy of a unit whose program exists on this machine."""
    text = (DEPLOY / "systemd" / name).read_text()
    text, found = re.subn(r"(?m)^(Exec\w+=)\S*/bin/megatron-monitor", rf"\g<1>{sys.executable}", text)
    assert found
    copy = directory / name.replace(".user.", ".")
    copy.write_text(text)
    return copy


@pytest.mark.systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    """`systemd-analyze verify` has no complaint."""
    user = ["--user"] if ".user." in name else []
    done = subprocess.run(
        ["systemd-analyze", *user, "verify", "--man=no", str(unit(name, tmp_path))],
        capture_output=True, text=True, timeout=slack(60), env={**environment(), "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.systemd
@pytest.mark.parametrize("name", UNITS[:2])
def test_the_unit_may_do_little(name: str, tmp_path: Path) -> None:
    """`systemd-analyze security`: exposure 2.0 of 10 at most; a unit without any of it has 9.6."""
    file = unit(name, tmp_path)
    done = tool("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", file)
    assert done.returncode == 0, done.stdout[-300:]


@pytest.mark.parametrize("name", UNITS[:3])
def test_the_unit_is_watched_and_starts_again(name: str) -> None:
    """What the daemon's side of the agreement needs: notify, a watchdog, a restart; and no root."""
    text = (DEPLOY / "systemd" / name).read_text()
    for line in ("Type=notify", "NotifyAccess=main", "WatchdogSec=60", "Restart=always", "NoNewPrivileges=yes"):
        assert f"\n{line}\n" in text
    assert ("\nUser=megatron-monitor\n" in text) == (".user." not in name)


# --- scripts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_takes_the_script(script: Path) -> None:
    """`bash -n`."""
    assert tool("bash", "-n", script).returncode == 0


@pytest.mark.shellcheck
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    """No finding of any severity."""
    done = tool("shellcheck", script)
    assert done.returncode == 0, done.stdout


def test_the_login_nodes_configuration_is_good() -> None:
    """Loaded by the daemon's own reader; requeued jobs are one run."""
    config = load(DEPLOY / "slurm" / "login-node.yaml")
    acting = load(DEPLOY / "slurm" / "remediations.yaml")
    assert all(one.dry_run for one in acting.remediations)
    assert (DEPLOY / "slurm" / "dump-stacks.sh").stat().st_mode & 0o111
    names = {named(path, config.runs).name for path in ("/shared/logs/tr11/17.out", "/shared/logs/tr11/18.err")}
    assert names == {"tr11"}


# --- containers -------------------------------------------------------------------------------------------------------


@pytest.mark.compose
def test_compose_takes_the_file() -> None:
    """`docker-compose config`, as old as 1.29."""
    variables = {**environment(), "LOGS": "/logs", "GRAFANA_PASSWORD": "x"}
    done = subprocess.run(
        ["docker-compose", "-f", str(DEPLOY / "container" / "compose.yaml"), "config", "-q"],
        capture_output=True, text=True, timeout=slack(60), env=variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_compose_is_closed_to_the_network_and_pinned() -> None:
    """Ports on loopback, images with a version, passwords from outside, what is mounted exists."""
    compose = loaded((DEPLOY / "container" / "compose.yaml").read_text())
    assert set(compose["services"]) == {"monitor", "receiver", "prometheus", "alertmanager", "grafana"}
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert re.search(r":(v?\d+\.\d+\.\d+|local)$", service["image"]), name
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / "container" / source).exists(), volume
    used = {volume.split(":")[0] for one in compose["services"].values() for volume in one["volumes"]}
    assert set(compose["volumes"]) == {name for name in used if name.isalpha()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by pip from nothing but what the Dockerfile copies and .dockerignore lets through."""
    directory = tmp_path_factory.mktemp("wheel")
    docker = (DEPLOY / "container" / "Dockerfile").read_text()
    allowed = {row[1:] for row in (ROOT / ".dockerignore").read_text().splitlines() if row.startswith("!")}
    copied = [
        source for row in re.findall(r"^COPY (?!--from)(.+)$", docker, re.MULTILINE) for source in row.split()[:-1]
    ]
    assert set(copied) == allowed
    for source in copied:
        (directory / source).parent.mkdir(exist_ok=True)
        subprocess.run(["cp", "-r", str(ROOT / source), str(directory / source)], check=True)
    options = ("-q", "--no-deps", "--no-build-isolation", "-w", directory / "built")
    done = tool(sys.executable, "-m", "pip", "wheel", *options, directory)
    assert done.returncode == 0, done.stderr
    (built,) = (directory / "built").iterdir()
    with zipfile.ZipFile(built) as packed:
        packed.extractall(directory / "site")
    return directory / "site"


def test_everything_of_a_release_has_its_version() -> None:
    """Package, chart, image and manifest; the image has the package's description and licence as OCI labels."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = loaded((DEPLOY / "helm" / "Chart.yaml").read_text())
    docker = (DEPLOY / "container" / "Dockerfile").read_text()
    found = re.findall(r'org\.opencontainers\.image\.([\w.]+)=(?:"([^"]+)"|(\S+))', docker)
    labels = {key: quoted or plain for key, quoted, plain in found}
    images = set(re.findall(r"image: registry.example/megatron-monitor:(\S+)", MANIFEST))
    assert {chart["version"], chart["appVersion"], labels["version"], *images} == {project["version"]}
    assert f"## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text()
    names = ("title", "description", "licenses")
    assert [labels[key] for key in names] == [project["name"], project["description"], project["license"]["text"]]
    assert {"authors", "classifiers", "keywords", "readme"} <= project.keys()


def test_the_wheel_holds_the_whole_program(wheel: Path) -> None:
    """All of it, in one package of its own name."""
    tracked = tool("git", "-C", ROOT, "ls-files", "monitor", "parsers").stdout.split()
    assert tracked
    links = {"monitor/parsers", "monitor/assets/deploy", "monitor/assets/grafana/dashboards"}
    installed = [wheel / "megatron_monitor" / name.removeprefix("monitor/") for name in tracked if name not in links]
    assert [path for path in installed if not path.is_file()] == []
    assert sorted(path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")) == ["megatron_monitor"]


def test_assets_come_out_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Byte for byte what the repository holds; a file that somebody changed is left, unless asked."""
    out = tmp_path / "out"

    def assets(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "megatron_monitor", "export", str(out), *more]
        variables = {**os.environ, "PYTHONPATH": str(wheel)}
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=slack(60))

    assert assets().returncode == 0
    tracked = tool(
        "git", "-C", ROOT, "ls-files", "config.yaml", "LICENSE", "grafana/dashboards", "deploy"
    ).stdout.split()
    links = {name: (ROOT / name).iterdir() for name in tracked if (ROOT / name).is_dir()}
    tracked += [f"{name}/{path.name}" for name, paths in links.items() for path in paths]
    expected = {name for name in tracked if not name.endswith("Dockerfile") and name not in links}
    assert {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()} == expected
    assert all((out / name).read_bytes() == (ROOT / name).read_bytes() for name in expected)
    (out / "config.yaml").write_text("mine")
    done = assets()
    assert (done.returncode, (out / "config.yaml").read_text()) == (1, "mine")
    assert "config.yaml: differs" in done.stderr
    assert assets("--force").returncode == 0
    assert "braces" in assets("--grafana", "https://{{x}}").stderr
    assert assets("--force", "--grafana=https://g.example:3000/", "--runbook=https://w.example/r.md").returncode == 0
    texts = {path: path.read_text() for path in out.rglob("*") if path.is_file() and "templates" not in path.parts}
    assert {str(path.relative_to(out).parent) for path, text in texts.items() if "runbooks.example" in text} == {
        "deploy/helm/rules", "deploy/helm/dashboards",
    }  # fmt: skip
    assert "https://g.example:3000/d/megatron-run?" in texts[out / "deploy/prometheus/rules/alerts.yml"]
    assert json.loads(texts[out / "grafana/dashboards/run.json"])


@pytest.mark.helm
def test_the_exported_chart_renders(tmp_path: Path) -> None:
    """Without a further step, with the addresses of the export in rules and dashboards."""
    done = CliRunner().invoke(
        cli, ["export", str(tmp_path), "--grafana=https://g.example", "--runbook=https://w.example"]
    )
    assert done.exit_code == 0, done.output
    rule = "--api-versions=monitoring.coreos.com/v1/PrometheusRule"
    made = tool("helm", "template", "x", tmp_path / "deploy" / "helm", rule)
    assert made.returncode == 0, made.stderr
    assert "https://g.example/d/megatron-run" in made.stdout
    assert "https://w.example#hang" in made.stdout or "https://w.example#{{" in made.stdout
    assert not re.search(r"(grafana|runbooks)\.example", made.stdout)


# --- Kubernetes -------------------------------------------------------------------------------------------------------

MANIFEST = (DEPLOY / "kubernetes" / "megatron-monitor.yaml").read_text()


@functools.cache
def validate(one: str, version: str) -> None:
    """An object is what Kubernetes takes, no unknown field; most charts have most objects in common."""
    kubernetes_validate.validate(json.loads(one), version, strict=True)


def objects(text: str, version: str = NEWEST_KUBERNETES) -> Objects:
    """By kind, namespace and name; each but the Operator's is what Kubernetes takes."""
    found = {}
    for one in yaml.load_all(text, Loader=yaml.CSafeLoader):
        if one is None:
            continue
        key = (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])
        assert key not in found, key
        found[key] = one
        if "coreos" not in one["apiVersion"]:
            validate(json.dumps(one), version)
    return found


def only(kind: str, name: str = "megatron-monitor") -> dict[str, Any]:
    """The manifest's object of a kind and a name."""
    return objects(MANIFEST)[kind, "megatron-monitor", name]


def test_kubernetes_takes_the_objects() -> None:
    """By the API's schema of old and new versions, which refuses a misspelt field."""
    assert objects(MANIFEST, OLDEST_KUBERNETES) == objects(MANIFEST)
    with pytest.raises(kubernetes_validate.ValidationError):
        objects(MANIFEST.replace("securityContext:", "securtyContext:"))


@pytest.mark.parametrize(
    ("name", "container", "command", "port"),
    [
        ("megatron-monitor", "megatron-monitor", "run", "metrics"),  # as prometheus/kubernetes.yml asks
        ("megatron-monitor-receiver", "receiver", "receive", "receiver"),
    ],
)
def test_the_pods_are_found_and_may_do_little(name: str, container: str, command: str, port: str) -> None:
    """Selectors meet labels, ports have names that are asked for, nobody may gain privileges, memory is bounded."""
    service, deployment = only("Service", name), only("Deployment", name)
    pod = deployment["spec"]["template"]
    (own,) = pod["spec"]["containers"]
    secured = own["securityContext"]
    assert not secured["allowPrivilegeEscalation"]
    assert secured["readOnlyRootFilesystem"]
    assert secured["capabilities"]["drop"] == ["ALL"]
    assert "memory" in own["resources"]["limits"]
    assert (own["name"], own["args"]) == (container, [command, "--config=/etc/megatron-monitor/config.yaml"])
    assert [one["name"] for one in own["ports"]] == [port]
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [port]
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in pod["spec"]["volumes"][1:]}
    assert name in claims
    assert all(only("PersistentVolumeClaim", claim) for claim in claims)
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    config = load(only("ConfigMap")["data"]["config.yaml"])
    assert (config.state_dir, config.receiver.directory) == ("/state", "/pushed/spool")


@pytest.mark.prometheus
def test_kubernetes_targets_are_kept_and_labelled(start_prometheus: StartPrometheus, tmp_path: Path) -> None:
    """kubernetes.yml's relabelling in a real Prometheus (Debian's lacks the discovery, so pods come from a file)."""
    config = loaded((DEPLOY / "prometheus" / "kubernetes.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    job["file_sd_configs"] = [{"files": [str(tmp_path / "pods.json")]}]
    config["rule_files"] = []

    def pod(name: str, container: str, port: str, phase: str) -> dict[str, Any]:
        labels = {"pod_container_name": container, "pod_container_port_name": port, "pod_phase": phase,
                  "namespace": "ml", "pod_name": name, "pod_node_name": "node-1"}  # fmt: skip
        return {"targets": ["127.0.0.1:1"], "labels": {f"__meta_kubernetes_{k}": v for k, v in labels.items()}}

    pods = [
        pod("good", "megatron-monitor", "metrics", "Running"), pod("over", "megatron-monitor", "metrics", "Succeeded"),
        pod("trainer", "trainer", "metrics", "Running"), pod("other", "megatron-monitor", "debug", "Running"),
    ]  # fmt: skip
    (tmp_path / "pods.json").write_text(json.dumps(pods))
    prometheus = start_prometheus(config)
    wait(lambda: bool(prometheus.api("targets", state="active")["activeTargets"]), 20.0, "a target")
    (target,) = prometheus.api("targets", state="active")["activeTargets"]
    assert target["labels"] == {
        "instance": "127.0.0.1:1", "job": "megatron-monitor", "namespace": "ml", "kubernetes_node": "node-1",
        "pod": "good",
    }  # fmt: skip


# --- Slurm ------------------------------------------------------------------------------------------------------------


def slurm_job(directory: Path, train: str, name: str) -> subprocess.Popen[bytes]:
    """training.sbatch under a Slurm that is no more than its variables and an srun that runs the command once."""
    programs = directory / "bin"
    programs.mkdir()
    for program, text in {
        "srun": 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"\n',
        "megatron-monitor": f'cd {ROOT} && exec {sys.executable} -m megatron_monitor "$@"\n',
    }.items():
        (programs / program).write_text(f"#!/usr/bin/env bash\n{text}")
        (programs / program).chmod(0o755)
    (directory / "targets").mkdir()
    (directory / "train.sh").write_text(train)
    variables = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(directory), "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": name, "SLURMD_NODENAME": "127.0.0.1", "MEGATRON_MONITOR_LINGER": "1",
        "MEGATRON_MONITOR_SH": str(DEPLOY / "slurm" / "monitor.sh"),
        "MEGATRON_MONITOR_TARGETS": str(directory / "targets"), "MEGATRON_MONITOR_LISTEN": f"127.0.0.1:{free_port()}",
        "MEGATRON_MONITOR_LOG": str(directory / "monitor.log"),
    }  # fmt: skip
    return subprocess.Popen(["bash", str(DEPLOY / "slurm" / "training.sbatch")], cwd=directory, env=variables)


TRAIN = """
for n in $(seq 1 1000); do
    echo " iteration $n/1000 | consumed samples: $n | elapsed time per iteration (ms): 100.0 | lm loss: 2.0E+00 |"
    if [ -e stop ]; then exit 3; fi
    sleep 0.1
done
"""


def iteration(target: str, run: str) -> str:
    """The row of the run's iteration, empty while nobody answers."""
    if not answers(f"http://{target}/metrics"):
        return ""
    rows = get(f"http://{target}/metrics").splitlines()
    return next((row for row in rows if row.startswith(f'megatron_iteration{{run="{run}"}}')), "")


@pytest.mark.parametrize("name", ["1234", "true", "a, b", "x: y", "tr11 #2", "[abl]", "-x*?", "it's {odd} $HOME"])
def test_a_job_may_be_called_anything(name: str, tmp_path: Path) -> None:
    """Its name is the run's, and its log is found, whatever YAML, the shell and globs make of such characters."""
    (tmp_path / f"{name}-1.log").write_text(ITERATION)
    (tmp_path / "other-1.log").write_text(ITERATION)
    call = f'''. {DEPLOY}/slurm/monitor.sh; printf %s "$(monitor_literal "$1")"'''
    literal = subprocess.run(
        ["bash", "-c", call, "-", str(tmp_path / name)], capture_output=True, text=True, check=True
    )
    done = CliRunner().invoke(cli, ["run", "--once", "--name", name, f"{literal.stdout}-*.log"])
    rows = [row for row in done.stdout.splitlines() if row.startswith("megatron_iteration{")]
    assert rows == [f'megatron_iteration{{run="{name}"}} 1.0'], done.output


@pytest.mark.e2e
@pytest.mark.parametrize(("end", "name"), [("by itself", "tr11"), ("by signal", "[abl]: 'a, b' #2")])
def test_the_monitor_lives_and_ends_with_the_job(end: str, name: str, tmp_path: Path) -> None:
    """Found by file_sd while the job runs; afterwards no target, no process; the job keeps its exit status."""
    job = slurm_job(tmp_path, TRAIN, name)
    target_file = tmp_path / "targets" / "job-4711.yml"
    try:
        wait(target_file.exists, 10.0, "the target")
        (target,) = loaded(target_file.read_text())
        assert target["labels"] == {"monitor_job": "4711"}
        (address,) = target["targets"]
        wait(lambda: bool(iteration(address, name)), 20.0, (tmp_path / "monitor.log").read_text)
        if end == "by itself":
            (tmp_path / "stop").touch()
        else:
            job.terminate()
        assert job.wait(timeout=slack(20)) == (3 if end == "by itself" else 143)
    finally:
        job.kill()
    assert not target_file.exists()
    assert not iteration(address, name)
    assert "Traceback" not in (tmp_path / "monitor.log").read_text()
