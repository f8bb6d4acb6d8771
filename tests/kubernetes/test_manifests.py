"""The manifests for Kubernetes are valid, and agree with the project and with the composition."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from scoreline.command import app
from settings.api import ApiSettings
from settings.bell import BellSettings
from settings.delivery import DeliverySettings
from settings.engine import EngineSettings
from settings.keys import KeySettings
from settings.limits import LimitSettings
from settings.logs import LogSettings
from settings.scoring import ScoringSettings
from settings.store import StoreSettings
from settings.telemetry import TelemetrySettings
from settings.version import VERSION
from settings.webhooks import WebhookSettings
from settings.worker import WorkerSettings
from tests.composition.compose_file import ENVIRONMENT_EXAMPLE, read_composition, read_environment_file
from tests.composition.image import read_dockerfile
from tests.composition.roles import READS, Slices, variables
from tests.kubernetes.keda import SCALED_OBJECT
from tests.kubernetes.manifests import APPLIED, FOLDER, WORKERS, Document, Role, of_kind, read, roles
from tests.kubernetes.pod_monitor import POD_MONITOR

OVERLAYS = tuple(f"overlays/{name}" for name in WORKERS)

FILES: Mapping[str, Slices] = {
    "scoreline-store": {StoreSettings, LogSettings},
    "scoreline-serving": {ScoringSettings, BellSettings},
    "scoreline-webhooks": {WebhookSettings},
    "scoreline-api": {ApiSettings, LimitSettings, KeySettings, TelemetrySettings},
    "scoreline-worker": {EngineSettings, WorkerSettings},
    "scoreline-deliver": {DeliverySettings},
}
"""The settings that may stand in each ConfigMap."""

SECRETS = {
    "SCORELINE_DATABASE_URL": ("scoreline-postgresql", "url"),
    "SCORELINE_REDIS_URL": ("scoreline-redis", "url"),
    "SCORELINE_BOOTSTRAP_KEY": ("scoreline-keys", "bootstrap?"),
    "SCORELINE_RECEIPT_KEYS": ("scoreline-keys", "receipts?"),
    "HF_TOKEN": ("scoreline-hub", "token?"),
}

OF_OPERATORS = {"ScaledObject": SCALED_OBJECT, "PodMonitor": POD_MONITOR}
"""The schemas of the resources that Kubernetes itself does not know, by their kind."""

KUBERNETES = kubernetes_validate.latest_version()


def _every_role() -> dict[str, Role]:
    """Return each role as each folder starts it, by folder and command."""
    return {f"{folder}: {command}": role for folder in APPLIED for command, role in roles(folder).items()}


EVERY_ROLE = _every_role()


def test_every_manifest_is_valid() -> None:
    seen: set[str] = set()
    for folder in APPLIED:
        for document in read(folder):
            text = json.dumps(document, sort_keys=True)
            if text in seen:
                continue
            seen.add(text)
            if document["kind"] in OF_OPERATORS:
                jsonschema.validate(document, OF_OPERATORS[document["kind"]])
            else:
                kubernetes_validate.validate(document, KUBERNETES, strict=True)
    assert len(seen) > 20


@pytest.mark.parametrize("folder", APPLIED)
def test_kustomize_makes_the_same_of_the_files_as_these_tests(folder: str) -> None:
    command = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    if named := os.environ.get("KUSTOMIZE"):
        command = [named, "build"]
    if shutil.which(command[0]) is None:
        pytest.skip("neither kustomize nor kubectl is installed; KUSTOMIZE may name kustomize")
    done = subprocess.run([*command, FOLDER / folder], capture_output=True, text=True, check=True)
    built, hashed = [], {}
    for document in yaml.safe_load_all(done.stdout):
        name = document["metadata"]["name"]
        if document["kind"] == "ConfigMap":
            document["metadata"]["name"] = hashed[name] = name.rpartition("-")[0]
        built.append(document)
    text = json.dumps(sorted(built, key=_name))
    for name, plain in hashed.items():
        text = text.replace(name, plain)
    assert json.loads(text) == sorted(read(folder), key=_name)


def _name(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def test_the_folders_start_the_roles_of_the_composition() -> None:
    assert roles("migrate").keys() == {"migrate"}
    for overlay in OVERLAYS:
        assert roles(overlay).keys() == READS.keys() - {"migrate"}
    assert not roles("autoscaling")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert {name.partition(": ")[2] for name in EVERY_ROLE} <= commands.keys()


@pytest.mark.parametrize("name", EVERY_ROLE)
def test_each_role_gets_the_files_of_the_settings_that_it_reads_and_no_others(name: str) -> None:
    role, reads = EVERY_ROLE[name], READS[name.partition(": ")[2]]
    assert set(role.settings) == {file for file, slices in FILES.items() if slices <= reads}
    assert {one for file in role.settings for one in FILES[file]} == reads, "each of its settings has a file"
    for file, data in role.settings.items():
        assert data.keys() <= variables(FILES[file]), f"{file}: another file, or no setting"
        assert not data.keys() & SECRETS.keys(), f"{file}: it belongs in a secret"
    read_here = variables(reads) | ({"HF_TOKEN"} if ScoringSettings in reads else set())
    assert role.secrets == {variable: secret for variable, secret in SECRETS.items() if variable in read_here}


def test_the_settings_that_are_given_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORELINE_DATABASE_URL", "postgresql+psycopg://scoreline@db.example/scoreline")
    for name, role in EVERY_ROLE.items():
        with monkeypatch.context() as given:
            for variable, value in role.variables.items():
                given.setenv(variable, value)
            for one in READS[name.partition(": ")[2]]:
                one()


def test_the_example_of_the_composition_and_the_manifests_serve_the_same_model() -> None:
    example = read_environment_file(ENVIRONMENT_EXAMPLE)
    for overlay in OVERLAYS:
        for name in ("SCORELINE_MODEL", "SCORELINE_MODEL_NAME"):
            assert roles(overlay)["worker"].variables[name] == example[name]


@pytest.mark.parametrize("name", EVERY_ROLE)
def test_each_role_runs_the_image_of_this_version_for_its_device(name: str) -> None:
    folder, _, command = name.partition(": ")
    accelerator = WORKERS[Path(folder).name] if command == "worker" else "cpu"
    container = EVERY_ROLE[name].container
    assert container["image"] == f"scoreline-{accelerator}:{VERSION}"
    assert "command" not in container, "the entrypoint of the image gets the signals"


@pytest.mark.parametrize("name", EVERY_ROLE)
def test_each_pod_keeps_to_the_restricted_standard_and_can_write_only_where_the_image_says(name: str) -> None:
    spec, container = EVERY_ROLE[name].pod["spec"], EVERY_ROLE[name].container
    user = next(run.value for run in read_dockerfile().final.all("RUN") if "useradd" in run.value)
    assert f"--uid {spec['securityContext']['runAsUser']} " in user
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all(set(volume) <= {"name", "emptyDir"} for volume in spec["volumes"])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    serving = "SCORELINE_MODEL" in EVERY_ROLE[name].variables
    assert mounted - {"/dev/shm"} == {"/tmp"} | ({read_dockerfile().final.environment["HF_HOME"]} if serving else set())


@pytest.mark.parametrize("name", EVERY_ROLE)
def test_no_service_of_the_cluster_sets_a_variable_that_looks_like_a_setting(name: str) -> None:
    """A Service named scoreline would set SCORELINE_PORT to an address, and no API would start."""
    assert EVERY_ROLE[name].pod["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", EVERY_ROLE)
def test_probes_ask_what_the_image_answers(name: str) -> None:
    role, command = EVERY_ROLE[name], name.partition(": ")[2]
    container, settings = role.container, role.variables
    ports = {port["name"]: str(port["containerPort"]) for port in container.get("ports", [])}
    expected = {
        "api": {"http": settings.get("SCORELINE_PORT")},
        "worker": {"metrics": settings.get("SCORELINE_WORKER_METRICS_PORT")},
        "deliver": {"metrics": settings.get("SCORELINE_DELIVERY_METRICS_PORT")},
        "migrate": {},
    }
    assert ports == expected[command]
    probes = {
        kind: container[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe") if kind in container
    }
    assert ("readinessProbe" in probes) == (command != "migrate")
    for probe in probes.values():
        if "exec" in probe:
            python, flag, module = probe["exec"]["command"]
            assert (python, flag) == ("python", "-m")
            assert importlib.util.find_spec(module) is not None
        else:
            assert probe["httpGet"]["port"] in ports
            assert probe["httpGet"]["path"] in {"/livez", "/readyz", "/metrics"}


def test_no_process_is_restarted_because_the_database_is_away() -> None:
    for name, role in EVERY_ROLE.items():
        liveness = role.container.get("livenessProbe", {"httpGet": {"path": ""}})
        assert liveness["httpGet"]["path"] in {"", "/livez", "/metrics"}, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_api_gets_requests_once_it_is_ready_and_goes_on_while_the_database_is_away(overlay: str) -> None:
    probes = roles(overlay)["api"].container
    assert probes["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert probes["readinessProbe"]["httpGet"]["path"] == probes["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert "**A load balancer asks `/livez`,**" in (FOLDER.parents[1] / "docs" / "proxy.md").read_text()
    for name, budget in of_kind(read(overlay), "PodDisruptionBudget").items():
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", name


@pytest.mark.parametrize("name", EVERY_ROLE)
def test_no_pod_can_fill_the_disk_of_its_node(name: str) -> None:
    for volume in EVERY_ROLE[name].pod["spec"]["volumes"]:
        assert "sizeLimit" in volume["emptyDir"], volume["name"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_upgrade_of_the_workers_applies_their_settings(overlay: str) -> None:
    page = (FOLDER.parents[1] / "docs" / "upgrade.md").read_text()
    (values,) = re.findall(r"--selector 'app\.kubernetes\.io/component in \((.*)\)'", page)
    applied = [
        one
        for one in read(overlay)
        if one["metadata"].get("labels", {}).get("app.kubernetes.io/component") in values.split(", ")
    ]
    assert of_kind(tuple(applied), "Deployment").keys() == {"scoreline-worker"}
    assert of_kind(tuple(applied), "ConfigMap").keys() >= roles(overlay)["worker"].settings.keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_metrics_of_every_role_are_read(overlay: str) -> None:
    monitors = of_kind(read("monitoring"), "PodMonitor")
    for command, role in roles(overlay).items():
        spec = monitors[f"scoreline-{command}"]["spec"]
        assert spec["selector"]["matchLabels"] == role.pod["metadata"]["labels"]
        (endpoint,) = spec["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["path"]) == (role.container["ports"][0]["name"], "/metrics")


def test_the_ingress_leads_to_the_api_and_not_to_its_metrics() -> None:
    (ingress,) = read("ingress")
    (service,) = of_kind(read(OVERLAYS[0]), "Service").values()
    routes = ingress["spec"]["rules"][0]["http"]["paths"]
    exact = {route["path"] for route in routes if route["pathType"] == "Exact"}
    begin = tuple(f"{route['path']}/" for route in routes if route["pathType"] == "Prefix")
    paths = json.loads((FOLDER.parents[1] / "docs" / "openapi.json").read_text())["paths"]
    kept = {path for path in paths if path not in exact and not path.startswith(begin)}
    assert kept == {"/", "/health", "/metrics", "/readyz"}
    for path in routes:
        assert path["backend"]["service"]["name"] == service["metadata"]["name"]
        assert path["backend"]["service"]["port"]["name"] == service["spec"]["ports"][0]["name"]


def test_each_role_has_the_time_to_stop_that_the_composition_gives() -> None:
    example = read_environment_file(ENVIRONMENT_EXAMPLE) | {"SCORELINE_BOOTSTRAP_KEY": "k" * 32}
    services = read_composition(example).services
    for overlay in OVERLAYS:
        for command, role in roles(overlay).items():
            seconds = float(services[command].raw["stop_grace_period"].removesuffix("s"))
            hook = role.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
            assert role.pod["spec"]["terminationGracePeriodSeconds"] - float(hook[1]) >= seconds


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_budgets_and_autoscaling_find_their_pods(overlay: str) -> None:
    documents = read(overlay)
    deployments = of_kind(documents, "Deployment")
    labels = {name: one["spec"]["template"]["metadata"]["labels"] for name, one in deployments.items()}
    for name, one in deployments.items():
        assert one["spec"]["selector"]["matchLabels"] == one["metadata"]["labels"] == labels[name]
    assert of_kind(documents, "Service")["scoreline-api"]["spec"]["selector"] == labels["scoreline-api"]
    budgets = of_kind(documents, "PodDisruptionBudget")
    assert {name: one["spec"]["selector"]["matchLabels"] for name, one in budgets.items()} == labels
    targets = [of_kind(documents, "HorizontalPodAutoscaler")["scoreline-api"]]
    targets += [one for one in read("autoscaling") if one["kind"] == "ScaledObject"]
    for one in targets:
        target = one["spec"]["scaleTargetRef"]["name"]
        assert "replicas" not in deployments[target]["spec"], "a new version would undo the autoscaling"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_network_policies_open_the_ports_that_are_used_and_no_others(overlay: str) -> None:
    policies = {name: one["spec"] for name, one in of_kind(read(overlay), "NetworkPolicy").items()}
    everybody = policies.pop("scoreline-all")
    assert everybody["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "scoreline"}
    assert "ingress" not in everybody, "nobody is reached who is not named"
    all_roles = roles(overlay)
    assert policies.keys() == {f"scoreline-{command}" for command in all_roles}
    for command, role in all_roles.items():
        policy = policies[f"scoreline-{command}"]
        assert policy["podSelector"]["matchLabels"] == role.pod["metadata"]["labels"]
        (ingress,) = policy["ingress"]
        (container_port,) = role.container["ports"]
        assert [port["port"] for port in ingress["ports"]] == [container_port["containerPort"]]
        assert ("from" in ingress) == (command != "api"), "only the API may be reached by everybody"
        outgoing = {port["port"] for rule in (*everybody["egress"], *policy["egress"]) for port in rule["ports"]}
        redis = {6379} if "SCORELINE_REDIS_URL" in role.secrets else set()
        assert outgoing == {53, 5432, 4318, 443} | redis
    webhooks = policies["scoreline-deliver"]["egress"]
    assert [port["port"] for rule in webhooks for port in rule["ports"]] == [
        int(port) for port in all_roles["deliver"].variables["SCORELINE_WEBHOOK_PORTS"].split(",")
    ]
    for block in webhooks[0]["to"]:
        assert block["ipBlock"]["except"], "webhooks never go to inner addresses"


def test_the_overlays_differ_only_in_the_device_of_the_workers() -> None:
    device = {"nodeSelector", "tolerations", "volumes", "containers"}
    plain = []
    for overlay in OVERLAYS:
        others = [one for one in read(overlay) if one["metadata"]["name"] != "scoreline-worker"]
        worker = json.loads(json.dumps(roles(overlay)["worker"].raw))
        del worker["spec"]["strategy"]
        spec = worker["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        same = {key: value for key, value in container.items() if key not in ("image", "resources", "volumeMounts")}
        plain.append((others, worker | {"spec": {key: spec[key] for key in spec.keys() - device}}, same))
    assert plain[0] == plain[1] == plain[2]


@pytest.mark.parametrize(
    ("overlay", "device"), [("overlays/gpu", "nvidia.com/gpu"), ("overlays/tpu", "google.com/tpu")]
)
def test_workers_with_an_accelerator_ask_for_one_and_go_where_they_are(overlay: str, device: str) -> None:
    worker = roles(overlay)["worker"]
    resources, spec = worker.container["resources"], worker.pod["spec"]
    assert resources["requests"][device] == resources["limits"][device] == 1
    assert [one["key"] for one in spec["tolerations"]] == [device]
    assert spec["nodeSelector"]
    assert worker.raw["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}, "devices are scarce"
