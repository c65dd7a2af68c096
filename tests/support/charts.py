"""The Helm chart, rendered by Helm's own engine, and what its objects must look like."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import helm_python
import jsonschema
import kubernetes_validate
import yaml
from referencing import Registry, Resource

from tests.support.stacks import ROOT

FOLDER = ROOT / "deploy/helm"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C takes a sixth of the time
RELEASE, NAME = "prod", "prod-batchyard"
MINIMAL: dict[str, Any] = {"existingSecret": "ours", "models": "[models.echo]\nengine = 'echo'\n"}
CLUSTER = [{"namespaceSelector": {"matchLabels": {"name": "ray"}}, "podSelector": {}}]
EXTERNAL: dict[str, Any] = {
    **MINIMAL,
    "enginesSecret": "engines",
    "environment": {"BATCHYARD_MAX_SEGMENTS": 4, "AWS_REGION": "eu-central-1"},
    "imagePullSecrets": ["pull"],
    "pod": {"nodeSelector": {"pool": "batch"}},
    "weights": {"existingClaim": "weights"},
    "artifacts": {"url": "s3://bucket/batchyard"},
    "redis": {"url": "rediss://:$(REDIS_PASSWORD)@redis.example.com:6379/0"},
    "postgresql": {"url": "postgresql+psycopg://batchyard@db.example.com:5432/batchyard"},
    "ray": {"address": "ray.example.com:6379", "shipCode": True, "auth": "token", "from": CLUSTER, "groups": []},
}
GROUP: dict[str, Any] = {
    "name": "cpu",
    "replicas": 2,
    "cpus": 8,
    "gpus": 0,
    "memory": "64Gi",
    "sharedMemory": "16Gi",
}
SCALED_GROUP: dict[str, Any] = {
    **{name: value for name, value in GROUP.items() if name != "replicas"},
    "name": "a100",
    "gpus": 1,
    "pod": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}], "runtimeClassName": "nvidia"},
    "autoscale": {"model": "qwen2.5-0.5b-instruct", "max": 8},
}
SCALED: dict[str, Any] = {**MINIMAL, "ray": {"groups": [SCALED_GROUP]}}
VARIANTS: dict[str, dict[str, Any]] = {
    "minimal": MINIMAL,
    "external": EXTERNAL,
    "scaled": SCALED,
    "groups": {**MINIMAL, "ray": {"groups": [GROUP, SCALED_GROUP]}},
    "nodes of a cluster of others": {**EXTERNAL, "ray": {**EXTERNAL["ray"], "groups": [GROUP, SCALED_GROUP]}},
    "open": {**MINIMAL, "artifacts": {"existingClaim": "artifacts"}, "networkPolicy": {"enabled": False}},
}

Object = dict[str, Any]

# The fields that the chart uses, no others. Sources: RayClusterSpec in ray-operator/apis/ray/v1/raycluster_types.go of
# KubeRay; ScaledObjectSpec in apis/keda/v1alpha1/scaledobject_types.go of KEDA, and its scaler `prometheus`. The
# definition of a RayCluster holds a copy of all of Kubernetes's pods: here Kubernetes's own schema checks templates.
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def _fields(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def _object(api_version: str, spec: dict[str, Any]) -> dict[str, Any]:
    return _fields(
        "apiVersion kind metadata spec",
        apiVersion={"const": api_version},
        kind={"type": "string"},
        metadata={"type": "object"},
        spec=spec,
    )


_HEAD = _fields("rayStartParams template", rayStartParams=_TEXTS, template={"type": "object"})
_GROUP = _fields(
    "groupName minReplicas maxReplicas rayStartParams template",
    groupName={"type": "string", "minLength": 1},
    replicas=_COUNT,
    minReplicas=_COUNT,
    maxReplicas=_COUNT,
    rayStartParams=_TEXTS,
    template={"type": "object"},
)
_TRIGGER = _fields(
    "type metadata",
    type={"const": "prometheus"},
    metadata={**_TEXTS, "required": ["serverAddress", "query", "threshold"]},
)
CUSTOM = {
    "RayCluster": _object(
        "ray.io/v1",
        _fields("headGroupSpec", headGroupSpec=_HEAD, workerGroupSpecs={"type": "array", "items": _GROUP}),
    ),
    "ScaledObject": _object(
        "keda.sh/v1alpha1",
        _fields(
            "scaleTargetRef triggers",
            scaleTargetRef=_fields("name", name={"type": "string"}),
            pollingInterval=_COUNT,
            cooldownPeriod=_COUNT,
            minReplicaCount=_COUNT,
            maxReplicaCount=_COUNT,
            triggers={"type": "array", "minItems": 1, "items": _TRIGGER},
        ),
    ),
}


@dataclass(frozen=True)
class Pod:
    """The template of a pod, with the object that makes such pods."""

    owner: Object
    template: Object

    @property
    def component(self) -> str:
        return str(self.labels["app.kubernetes.io/component"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"]["labels"])

    @property
    def spec(self) -> Object:
        return dict(self.template["spec"])

    @property
    def containers(self) -> list[Object]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def main(self) -> Object:
        (container,) = self.spec["containers"]
        return dict(container)


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that the chart makes of values, by their names in its folder `templates`.

    Raises:
        helm_python.HelmError: the values are refused.
    """
    with helm_python.Chart.load(FOLDER) as chart:
        rendered = chart.render(dict(values), name=RELEASE, namespace="batch")
    return {name.rpartition("/")[2]: text for name, text in rendered.items()}


def render(values: Mapping[str, Any]) -> list[Object]:
    """Return the objects that the chart makes of values. Raises as `texts`."""
    files = {name: text for name, text in texts(values).items() if name != "NOTES.txt"}
    return [document for text in files.values() for document in yaml.load_all(text, LOADER) if document]


def pods(objects: list[Object]) -> list[Pod]:
    """Return the templates of pods of all objects."""
    return [Pod(document, template) for document in objects for template in _templates(document)]


def _templates(document: Object) -> Iterator[Object]:
    spec = document.get("spec", {})
    if "template" in spec:
        yield spec["template"]
    if document["kind"] == "RayCluster":
        yield from (group["template"] for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]])


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Return the objects of these kinds."""
    return [document for document in objects if document["kind"] in kinds]


def the_pod(objects: list[Object], component: str) -> Pod:
    """Return the one template of a pod of this component."""
    (pod,) = (pod for pod in pods(objects) if pod.component == component)
    return pod


def the(objects: list[Object], kind: str, name: str) -> Object:
    """Return the one object of this kind and name, without the release's before it."""
    (document,) = (one for one in of_kind(objects, kind) if one["metadata"]["name"] == f"{NAME}-{name}")
    return document


def environment(container: Object) -> dict[str, str]:
    """Return the variables of a container that have a value in the chart."""
    return {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}


def validate(document: Object, version: str) -> None:
    """Check an object against the schema of its kind in that version of Kubernetes, or against CUSTOM.

    Raises:
        jsonschema.ValidationError: it has a field that is none, or of another type, or lacks one.
    """
    if document["kind"] not in CUSTOM:
        return _validator(document["apiVersion"], document["kind"], version).validate(document)
    jsonschema.validate(document, CUSTOM[document["kind"]])
    for template in _templates(document):
        validate({"apiVersion": "v1", "kind": "PodTemplate", "template": template}, version)


@functools.cache
def _validator(api_version: str, kind: str, version: str) -> jsonschema.Draft202012Validator:
    """The package's own function would read megabytes of definitions for each object."""
    group, _, number = api_version.rpartition("/")
    name = "-".join([kind.lower(), *filter(None, [group.partition(".")[0]]), number])
    registry = Resource.from_contents(_schema(version, "_definitions")) @ Registry()
    return jsonschema.Draft202012Validator(_schema(version, name), registry=registry)


@functools.cache
def _schema(version: str, name: str) -> Any:
    folder = resources.files(kubernetes_validate) / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    return json.loads((folder / f"{name}.json").read_text())
