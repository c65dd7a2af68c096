"""The Helm chart renders valid objects that fit each other, and deploys what docker-compose.yml does."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import click
import helm_python
import pytest
import yaml
from ray.scripts.scripts import start as ray_start

import batchyard
from batchyard import settings
from batchyard.cli import main
from batchyard.local import services
from tests.support import charts
from tests.support.charts import EXTERNAL, FOLDER, MINIMAL, NAME, SCALED, VARIANTS, Object, the, the_pod
from tests.support.stacks import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OURS = {"gateway", "web", "worker", "housekeeper", "webhooks", "beat", "flower"}
COMPONENT = "app.kubernetes.io/component"


@pytest.fixture(params=VARIANTS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return charts.render(VARIANTS[request.param])


@pytest.mark.parametrize("variant", VARIANTS)
def test_lint_has_nothing_to_say(variant: str) -> None:
    report = helm_python.lint(FOLDER, VARIANTS[variant], strict=True)
    assert report["errors"] == []
    assert [message for message in report["messages"] if message["error"] != "icon is recommended"] == []


@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_every_object_is_one_of_kubernetes(objects: list[Object], version: str) -> None:
    for document in objects:
        charts.validate(document, version)


def test_a_wrong_object_would_be_found() -> None:
    for kind, path in (("Deployment", "spec template spec"), ("RayCluster", "spec"), ("ScaledObject", "spec")):
        document = charts.of_kind(charts.render(SCALED), kind)[0]
        place = document
        for name in path.split():
            place = place[name]
        place["replica"] = 1
        with pytest.raises(Exception, match="replica"):
            charts.validate(document, "1.37")


def test_the_oldest_kubernetes_that_is_checked_is_the_oldest_that_the_chart_takes() -> None:
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    assert chart["kubeVersion"].startswith(">=1.27")
    assert chart["version"] == chart["appVersion"] == batchyard.__version__


def test_names_are_unique_and_short_enough(objects: list[Object]) -> None:
    names = Counter((document["kind"], document["metadata"]["name"]) for document in objects)
    assert max(names.values()) == 1
    with helm_python.Chart.load(FOLDER) as chart:
        files = chart.render(EXTERNAL, name="r" * 53)
    for document in (document for text in files.values() for document in yaml.safe_load_all(text) if ".yaml" in text):
        assert len(document["metadata"]["name"]) <= 63


def test_the_chart_deploys_the_services_of_the_compose_file() -> None:
    deployed = {pod.component for pod in charts.pods(charts.render(MINIMAL))}
    there = {"postgres": "postgresql", "ray-worker": "ray-gpu"}
    compose = {there.get(name, name) for name in COMPOSE} - {"prometheus", "grafana", "migrate"}
    assert deployed == compose
    assert "migrate" in {pod.component for pod in charts.pods(charts.render(EXTERNAL))}


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_has_the_command_and_the_check_of_the_compose_file(name: str) -> None:
    container = the_pod(charts.render(MINIMAL), name).main
    command = [word.replace(f"{NAME}-web", "web") for word in container["command"]]
    compose = [word.replace("$$", "$") for word in COMPOSE[name]["command"]]
    assert command == compose
    probe = container.get("readinessProbe", {})
    check = [word.replace("$$", "$") for word in COMPOSE[name].get("healthcheck", {}).get("test", [])]
    if "exec" in probe:
        assert ["CMD-SHELL", *probe["exec"]["command"][2:]] == check
    elif "httpGet" in probe:
        assert f"http://127.0.0.1:{probe['httpGet']['port']}{probe['httpGet']['path']}" in check[-1]
    elif "tcpSocket" in probe:
        assert f"('127.0.0.1', {probe['tcpSocket']['port']})" in check[-1]
    else:
        assert check == []
    stop_signal = charts.environment(container).get("REMAP_SIGTERM")
    assert stop_signal == COMPOSE[name].get("stop_signal")


def test_webhooks_has_no_process_1_as_it_has_none_in_the_compose_file() -> None:
    objects = charts.render(MINIMAL)
    for name in OURS:
        shared = the_pod(objects, name).spec.get("shareProcessNamespace", False)
        assert shared == COMPOSE[name].get("init", False)


def test_command_lines_are_understood(objects: list[Object]) -> None:
    """Those of our services are the compose file's, which tests/system/test_compose_file.py runs."""
    for pod in charts.pods(objects):
        for container in pod.containers:
            words = container.get("command", ["the entry point of its image"])
            if words[:2] == ["ray", "start"]:
                with ray_start.make_context("start", words[2:]) as context:
                    assert context.params["block"]
                    assert context.params["head"] == (pod.component == "ray-head")
            elif words[0] == "batchyard":
                assert isinstance(main.cli, click.Group)
                main.cli.commands[words[1]].make_context(words[1], words[2:])


def test_every_variable_is_a_setting_or_of_ray(objects: list[Object]) -> None:
    names = {settings.environment_name(field) for field in settings.Settings.model_fields}
    others = {"HOME", "HF_HOME", "REMAP_SIGTERM", "RAY_AUTH_MODE", *services.RAY_ENVIRONMENT, "AWS_REGION"}
    for pod in charts.pods(objects):
        if pod.component in ("redis", "postgresql"):
            continue
        for container in pod.containers:
            variables = charts.environment(container)
            assert variables.keys() <= names | others, pod.component
            assert services.RAY_ENVIRONMENT.items() <= variables.items(), pod.component
            if pod.component in OURS:
                with mock.patch.dict("os.environ", variables, clear=True):
                    loaded = settings.load()
                assert loaded.database.startswith("postgresql+psycopg://batchyard@")
                assert loaded.ray_address.endswith(":6379")


def test_what_the_chart_sets_itself_is_refused_as_a_variable() -> None:
    objects = charts.render(MINIMAL)
    set_here = {name for component in OURS for name in charts.environment(the_pod(objects, component).main)}
    for name in {*set_here, "FLOWER_BASIC_AUTH"}:
        with pytest.raises(helm_python.HelmValuesError, match=name):
            charts.render({**MINIMAL, "environment": {name: "x"}})


def test_no_container_has_more_rights_than_it_needs(objects: list[Object]) -> None:
    for pod in charts.pods(objects):
        security = pod.spec["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.spec["automountServiceAccountToken"] is False
        assert pod.spec["enableServiceLinks"] is False, "a Service named redis would set REDIS_PORT and others"
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys()
        for container in pod.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= {
                *(volume["name"] for volume in pod.spec.get("volumes", [])),
                *(claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", [])),
            }


def test_what_writes_has_where(objects: list[Object]) -> None:
    for pod in charts.pods(objects):
        for container in pod.containers:
            mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
            if pod.component == "redis":
                assert mounted == {"/data"}
            elif pod.component == "postgresql":
                assert mounted == {"/var/lib/postgresql", "/var/run/postgresql", "/tmp"}
            else:
                assert mounted >= {"/tmp", "/data"}
                assert charts.environment(container)["HOME"] == "/tmp"
            if pod.component.startswith("ray-") or container["name"] == "worker":
                assert "/dev/shm" in mounted, "Ray keeps objects there"


def test_every_service_has_probes(objects: list[Object]) -> None:
    for pod in charts.pods(objects):
        if pod.component == "migrate":
            continue
        assert "readinessProbe" in pod.main, pod.component
        over_redis = pod.component in ("worker", "housekeeper", "webhooks")
        assert ("livenessProbe" in pod.main) != over_redis, "or all would restart while Redis is away"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for kind in ("tcpSocket", "httpGet"):
                port = pod.main.get(probe, {}).get(kind, {}).get("port")
                assert port in (None, *(entry["containerPort"] for entry in pod.main.get("ports", [])))


def matches(selector: Object, labels: dict[str, str]) -> bool:
    contained = {"In": True, "NotIn": False}
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        (labels.get(term["key"]) in term["values"]) == contained[term["operator"]]
        for term in selector.get("matchExpressions", [])
    )


def test_selectors_find_their_own_pods_and_no_others(objects: list[Object]) -> None:
    templates = charts.pods(objects)
    for document in charts.of_kind(objects, "Deployment", "StatefulSet", "PodDisruptionBudget", "Service"):
        selector = document["spec"]["selector"]
        if document["kind"] == "Service":
            selector = {"matchLabels": selector}
        found = [pod for pod in templates if matches(selector, pod.labels)]
        assert [pod.component for pod in found] == [document["metadata"]["labels"][COMPONENT]]
        for port in document["spec"].get("ports", []):
            assert port["targetPort"] in {entry["name"] for entry in found[0].main["ports"]}
            assert port["port"] in {entry["containerPort"] for entry in found[0].main["ports"]}


def test_what_an_object_names_is_there(objects: list[Object]) -> None:
    given = {"Secret": {"ours", "engines", "pull"}, "PersistentVolumeClaim": {"weights", "artifacts"}}
    there = {
        kind: given.get(kind, set()) | {found["metadata"]["name"] for found in charts.of_kind(objects, kind)}
        for kind in ("Secret", "ConfigMap", "PersistentVolumeClaim", "Service", "Deployment")
    }
    for pod in charts.pods(objects):
        assert {entry["name"] for entry in pod.spec.get("imagePullSecrets", [])} <= there["Secret"]
        for volume in pod.spec.get("volumes", []):
            assert volume.get("configMap", {}).get("name") in {None, *there["ConfigMap"]}
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *there["PersistentVolumeClaim"]}
        for container in pod.containers:
            secrets = [entry["secretRef"]["name"] for entry in container.get("envFrom", [])]
            keys = [entry["valueFrom"]["secretKeyRef"] for entry in container.get("env", []) if "valueFrom" in entry]
            assert {*secrets, *(key["name"] for key in keys)} <= there["Secret"]
            words = [*container.get("command", []), *charts.environment(container).values()]
            hosts = re.findall(rf"{NAME}-[\w-]+(?=:\d)", " ".join(words))
            assert set(hosts) <= there["Service"]
    for scaled in charts.of_kind(objects, "ScaledObject"):
        assert scaled["spec"]["scaleTargetRef"]["name"] in there["Deployment"]


def test_only_ours_get_the_secret_of_databases() -> None:
    objects = charts.render({**MINIMAL, "enginesSecret": "engines"})
    for pod in charts.pods(objects):
        secrets = [entry["secretRef"]["name"] for entry in pod.main.get("envFrom", [])]
        if pod.component.startswith("ray-"):
            assert secrets == ["engines"]
            assert not {"DATABASE_URL", "REDIS_URL"} & charts.environment(pod.main).keys()
        elif pod.component in OURS:
            assert secrets == ["ours", "engines"]


def test_passwords_are_taken_by_reference_and_missing_ones_end_the_pod() -> None:
    objects = charts.render(MINIMAL)
    for component, variable, key in (
        ("flower", "FLOWER_BASIC_AUTH", "FLOWER_BASIC_AUTH"),
        ("postgresql", "POSTGRES_PASSWORD", "PGPASSWORD"),
    ):
        (entry,) = (entry for entry in the_pod(objects, component).main["env"] if entry["name"] == variable)
        assert entry["valueFrom"] == {"secretKeyRef": {"name": "ours", "key": key}}
    assert charts.of_kind(objects, "Secret") == []


def test_the_schema_is_up_to_date_before_anything_starts() -> None:
    """By a hook for a database that is there already, by the pods themselves for one that starts with them."""
    external = charts.render(EXTERNAL)
    (job,) = charts.of_kind(external, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = the_pod(external, "migrate")
    assert pod.main["command"] == ["batchyard", "migrate"]
    # Nothing else of the release is there when it runs.
    assert all("emptyDir" in volume for volume in pod.spec["volumes"])
    assert not any(pod.spec.get("initContainers") for pod in charts.pods(external))
    internal = charts.render(MINIMAL)
    assert charts.of_kind(internal, "Job") == []
    first = {pod.component for pod in charts.pods(internal) if pod.spec.get("initContainers")}
    assert first == OURS - {"beat", "flower"}, "these open the database"


def test_what_can_be_had_elsewhere_is_not_deployed() -> None:
    external = charts.render(EXTERNAL)
    assert charts.of_kind(external, "StatefulSet", "RayCluster", "PersistentVolumeClaim") == []
    variables = charts.environment(the_pod(external, "worker").main)
    assert variables["RAY_ADDRESS"] == "ray.example.com:6379"
    assert variables["BATCHYARD_RAY_SHIP_CODE"] == "true"
    assert variables["RAY_AUTH_MODE"] == "token"
    assert variables["ARTIFACTS_URL"] == "s3://bucket/batchyard"
    assert variables["BATCHYARD_MAX_SEGMENTS"] == "4"
    (claim,) = charts.of_kind(charts.render(MINIMAL), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_all_services_that_open_artifacts_share_them() -> None:
    for values, claim in ((MINIMAL, f"{NAME}-artifacts"), (VARIANTS["open"], "artifacts")):
        for component in OURS - {"beat", "flower"}:
            pod = the_pod(charts.render(values), component)
            url = charts.environment(pod.main)["ARTIFACTS_URL"]
            (name,) = (m["name"] for m in pod.main["volumeMounts"] if m["mountPath"] == urlsplit(url).path)
            (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == name)
            assert volume["persistentVolumeClaim"] == {"claimName": claim}


def test_a_change_of_the_models_starts_the_services_anew() -> None:
    def annotations(models: str) -> Any:
        return the_pod(charts.render({**MINIMAL, "models": models}), "web").template["metadata"]["annotations"]

    assert annotations("a") != annotations("b")
    models = 'x = "%"\n[models."a: b"]\n'
    assert the(charts.render({**MINIMAL, "models": models}), "ConfigMap", "models")["data"] == {"models.toml": models}


def test_nodes_are_of_the_cluster_unless_they_are_scaled_or_join_one_of_others() -> None:
    (cluster,) = charts.of_kind(charts.render(VARIANTS["groups"]), "RayCluster")
    assert [group["groupName"] for group in cluster["spec"]["workerGroupSpecs"]] == ["cpu"]
    assert cluster["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    scaled = the(charts.render(VARIANTS["groups"]), "Deployment", "ray-a100")
    assert "replicas" not in scaled["spec"], "it would undo what KEDA does"
    joined = charts.render(VARIANTS["nodes of a cluster of others"])
    assert the(joined, "Deployment", "ray-cpu")["spec"]["replicas"] == 2
    node = the_pod(joined, "ray-a100")
    assert "--address=ray.example.com:6379" in node.main["command"]
    assert node.main["resources"]["limits"] == {"memory": "64Gi", "nvidia.com/gpu": 1}
    assert node.spec["nodeSelector"] == {"pool": "batch"} and node.spec["runtimeClassName"] == "nvidia"


def reaches(objects: list[Object], source: dict[str, str] | None, target: str) -> bool:
    """True if a pod of the release with these labels reaches `target`; None is a pod of another namespace."""
    policies = charts.of_kind(objects, "NetworkPolicy")
    applied = [p for p in policies if matches(p["spec"]["podSelector"], the_pod(objects, target).labels)]
    peers = [peer for policy in applied for rule in policy["spec"]["ingress"] for peer in rule["from"]]
    return not applied or any(
        peer.get("namespaceSelector") == {} if source is None else matches(peer["podSelector"], source)
        for peer in peers
        if source is None or "namespaceSelector" not in peer
    )


def test_only_our_pods_reach_each_other() -> None:
    objects = charts.render(MINIMAL)
    labels = {pod.component: pod.labels for pod in charts.pods(objects)}
    assert [target for target in labels if reaches(objects, None, target)] == ["gateway"]
    for store in ("redis", "postgresql"):
        assert {source for source in labels if reaches(objects, labels[source], store)} == OURS
    for source, target in (
        *(("gateway", target) for target in ("web", "ray-gpu")),
        *(("web", target) for target in ("ray-head",)),
        *(("worker", target) for target in ("ray-head", "ray-gpu")),
        *(("ray-gpu", target) for target in ("ray-head", "worker")),
    ):
        assert reaches(objects, labels[source], target), f"{source} to {target}"
    others = charts.render({**MINIMAL, "networkPolicy": {"gatewayFrom": [], "flowerFrom": charts.CLUSTER}})
    assert not reaches(others, None, "gateway")
    assert the(others, "NetworkPolicy", "flower")["spec"]["ingress"][0]["from"] == charts.CLUSTER
    assert the(charts.render(EXTERNAL), "NetworkPolicy", "worker")["spec"]["ingress"] == [{"from": charts.CLUSTER}]
    closed = [p for p in charts.of_kind(objects, "NetworkPolicy") if "Egress" in p["spec"]["policyTypes"]]
    assert [policy["metadata"]["name"] for policy in closed] == [f"{NAME}-stores"], "webhooks and web go out"
    assert charts.of_kind(charts.render(VARIANTS["open"]), "NetworkPolicy") == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here; on Debian: apt install prometheus")
def test_keda_asks_for_as_many_nodes_as_the_metric_says_and_for_the_first_one(tmp_path: Path) -> None:
    (scaled,) = charts.of_kind(charts.render(SCALED), "ScaledObject")
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (0, 8)
    (trigger,) = scaled["spec"]["triggers"]

    ours, other = (f'{{model="{model}"}}' for model in (charts.SCALED_GROUP["autoscale"]["model"], "other"))

    def test(series: dict[str, int], *expected: int) -> Object:
        given = {**series, f"batchyard_replicas_needed{other}": 9, f"batchyard_segments{other}": 9}
        samples = [{"labels": "{}", "value": value} for value in expected]
        return {
            "input_series": [{"series": name, "values": str(value)} for name, value in given.items()],
            "promql_expr_test": [{"expr": trigger["metadata"]["query"], "eval_time": "0m", "exp_samples": samples}],
        }

    needed, segments = f"batchyard_replicas_needed{ours}", f"batchyard_segments{ours}"
    tests = [
        test({needed: 3, segments: 7}, 3),
        test({needed: 0, segments: 0}, 0),
        test({segments: 7}, 1),
        test({segments: 0}, 0),
        test({}),
    ]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    run = subprocess.run(["promtool", "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
