"""The composition, the image and the project agree on commands, settings, addresses and files."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from scoreline.command import app
from settings.bell import BellSettings
from settings.scoring import ScoringSettings
from settings.slice import SettingsSlice
from settings.store import StoreSettings
from settings.webhooks import WebhookSettings
from tests.composition.compose_file import (
    COMPOSE_FILE,
    ENVIRONMENT_EXAMPLE,
    Composition,
    CompositionError,
    Service,
    interpolate,
    read_composition,
    read_environment_file,
    referenced,
)
from tests.composition.image import Dockerfile, build_context_paths, read_dockerfile
from tests.composition.roles import READS, variables
from tests.kubernetes import manifests as kubernetes

ROOT = Path(__file__).parents[2]
WORKERS = {"worker": ("cpu", "cpu"), "worker-gpu": ("gpu", "cuda"), "worker-tpu": ("tpu", "tpu")}
"""The profile of each service and the ACCELERATOR of its image."""

KEY = "bootstrap-key-of-a-composition-" + "0" * 16


@pytest.fixture(scope="module")
def example() -> dict[str, str]:
    """The example, copied to .env and completed."""
    return read_environment_file(ENVIRONMENT_EXAMPLE) | {"SCORELINE_BOOTSTRAP_KEY": KEY}


@pytest.fixture(scope="module")
def composition(example: dict[str, str]) -> Composition:
    return read_composition(example)


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return read_dockerfile()


@pytest.fixture(scope="module")
def roles(composition: Composition) -> dict[str, Service]:
    """The services that run the image of this project."""
    return {name: service for name, service in composition.services.items() if service.accelerator is not None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${SET}", "value"),
        ("a ${SET:-b} c ${UNSET:-d e}", "a value c d e"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY}", ""),
        ("$$HOME", "$HOME"),
        ("${SET:?message}", "value"),
    ],
)
def test_variables_are_interpolated_as_by_docker_compose(text: str, expected: str) -> None:
    assert interpolate(text, {"SET": "value", "EMPTY": ""}) == expected


@pytest.mark.parametrize("text", ["${UNSET}", "${UNSET:?message}", "$SET", "${SET-x}", "${SET:-${OTHER}}", "${", "5 $"])
def test_required_variables_that_are_unset_and_unknown_syntax_are_refused(text: str) -> None:
    with pytest.raises(CompositionError):
        interpolate(text, {"SET": "value"})


def test_every_service_runs_a_command_of_the_project(roles: dict[str, Service], dockerfile: Dockerfile) -> None:
    assert {service.command[0] for service in roles.values()} == READS.keys()
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for service in roles.values():
        (name,) = service.command
        assert name in commands, service.name
    assert dockerfile.final.last("ENTRYPOINT").words() == ["scoreline"]
    module, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["scoreline"].split(
        ":"
    )
    script = next(run.value for run in dockerfile.final.all("RUN") if run.value.startswith("printf"))
    assert f"from {module} import {function}\\n{function}()" in script


def test_every_setting_can_be_set_and_no_other_variable_is(roles: dict[str, Service]) -> None:
    known = variables(set(SettingsSlice.__subclasses__()))
    for service in roles.values():
        named = {name for name in {*service.environment, *service.passed_on} if name.startswith("SCORELINE_")}
        assert named <= known, f"{service.name}: no settings"
        wanted = variables(READS[service.command[0]])
        assert wanted <= named, f"docker-compose.yml: {service.name} is not given {sorted(wanted - named)}"
        assert named <= wanted, f"{service.name} does not read {sorted(named - wanted)}"


def test_every_documented_variable_of_traces_is_passed_on(roles: dict[str, Service]) -> None:
    page = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `OTEL_")]
    documented = {name for row in rows for name in re.findall(r"`(OTEL_\w+)", row)}
    assert len(documented) > 10
    for name in ("api", "worker", "deliver"):
        passed_on = {variable for variable in roles[name].passed_on if variable.startswith("OTEL_")}
        # A name with a star stands for all that begin like it.
        missing = {known for known in documented if not any(one.startswith(known) for one in passed_on)}
        assert not missing, f"docker-compose.yml: {name} is not given {sorted(missing)}"


def test_api_and_workers_get_the_same_values_of_shared_settings(example: dict[str, str]) -> None:
    """With every setting set. A limit given to only one of them would be enforced by that one alone."""
    shared = variables({StoreSettings, ScoringSettings, BellSettings}) | {"HF_TOKEN", "PGPASSWORD"}
    webhooks = variables({WebhookSettings})
    everything = {name: f"of {name}" for name in shared | webhooks} | {"POSTGRES_PASSWORD": "secret"}
    services = read_composition(example | everything).services
    for worker in WORKERS:
        for name in sorted(shared):
            assert services["api"].environment[name] == services[worker].environment[name], name
    for name in sorted(webhooks | variables({StoreSettings})):
        assert services["api"].environment[name] == services["deliver"].environment[name], name
    assert services["migrate"].environment.items() <= services["api"].environment.items()


def test_a_setting_that_is_not_given_keeps_its_default(composition: Composition) -> None:
    """The example sets the demonstration model. All other settings are left unset, and not set to an empty string."""
    for service in composition.services.values():
        assert "" not in service.environment.values(), service.name
        for name in service.passed_on & service.environment.keys():
            assert name in read_environment_file(ENVIRONMENT_EXAMPLE)


def test_the_example_env_file_sets_only_variables_that_the_composition_reads(
    example: dict[str, str], composition: Composition
) -> None:
    read = set(referenced(yaml.safe_load(COMPOSE_FILE.read_text())))
    read |= {name for service in composition.services.values() for name in service.passed_on} | {"COMPOSE_PROFILES"}
    assert example.keys() <= read, "the example sets what nothing reads"
    with pytest.raises(CompositionError, match=r"\.env\.example"):
        read_composition({})


def test_the_example_env_file_serves_the_demonstration_model(example: dict[str, str]) -> None:
    served = Path(example["SCORELINE_MODEL"])
    assert served.as_posix() in build_context_paths(), "it is in the image, by its path from the working folder"
    assert (ROOT / served / "config.json").is_file()
    assert ROOT / served == ROOT / ScoringSettings.model_fields["model"].default
    assert example["SCORELINE_MODEL_NAME"] == "demonstration"


def test_services_are_configured_with_the_addresses_of_each_other(
    composition: Composition, dockerfile: Dockerfile
) -> None:
    api, postgres = composition.services["api"], composition.services["postgres"]
    assert (api.environment["SCORELINE_HOST"], api.environment["SCORELINE_PORT"]) == ("0.0.0.0", "8000")
    assert [inside for _, _, inside in api.ports] == [api.environment["SCORELINE_PORT"]]
    assert dockerfile.final.last("EXPOSE").value == api.environment["SCORELINE_PORT"]
    user, database = postgres.environment["POSTGRES_USER"], postgres.environment["POSTGRES_DB"]
    url = f"postgresql+psycopg://{user}@postgres:5432/{database}"
    assert api.environment["SCORELINE_DATABASE_URL"] == url
    assert api.environment["PGPASSWORD"] == postgres.environment["POSTGRES_PASSWORD"]
    assert api.environment["SCORELINE_REDIS_URL"] == "redis://redis:6379/0"
    assert {f"--username={user}", f"--dbname={database}"} <= set(postgres.healthcheck)


def test_only_the_api_is_published_and_only_on_the_loopback_address(example: dict[str, str]) -> None:
    for given in (example, {"POSTGRES_PASSWORD": "secret", "SCORELINE_BOOTSTRAP_KEY": KEY}):
        services = read_composition(given).services
        assert {name: service.ports for name, service in services.items() if service.ports} == {
            "api": [("127.0.0.1", "8000", "8000")]
        }
        assert not any(service.raw.get("network_mode") for service in services.values())
    elsewhere = example | {"SCORELINE_HOST": "10.0.0.7", "SCORELINE_PORT": "9000"}
    assert read_composition(elsewhere).services["api"].ports == [("10.0.0.7", "9000", "8000")]


def test_nothing_starts_without_an_api_key(example: dict[str, str]) -> None:
    given = read_environment_file(ENVIRONMENT_EXAMPLE)
    assert given["SCORELINE_BOOTSTRAP_KEY"] == "", "a key that is published is none"
    with pytest.raises(CompositionError, match=r"\.env\.example"):
        read_composition(given)
    holders = {
        service.name
        for service in read_composition(example).services.values()
        if "SCORELINE_BOOTSTRAP_KEY" in service.environment
    }
    assert holders == {"api"}


def test_each_profile_has_one_kind_of_worker(
    composition: Composition, example: dict[str, str], dockerfile: Dockerfile
) -> None:
    (argument,) = (one.value for stage in dockerfile.stages for one in stage.all("ARG"))
    for name, (profile, accelerator) in WORKERS.items():
        service = composition.services[name]
        assert (service.profiles, service.accelerator) == (frozenset({profile}), accelerator)
        assert (ROOT / "pins" / f"{accelerator}.txt").is_file()
        assert {other.name for other in composition.start_order(profile) if other.name in WORKERS} == {name}
    assert argument == "ACCELERATOR=cpu"
    assert example["COMPOSE_PROFILES"] == "cpu"


def test_each_image_is_named_after_its_accelerator(roles: dict[str, Service]) -> None:
    for service in roles.values():
        assert service.raw["image"] == f"scoreline:{service.accelerator}"
        assert service.raw["build"]["context"] == "."


def test_workers_get_the_devices_of_their_accelerator(composition: Composition) -> None:
    (devices,) = composition.services["worker-gpu"].raw["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["driver"], devices["capabilities"]) == ("nvidia", ["gpu"])
    assert [name for name, service in composition.services.items() if service.raw.get("privileged")] == ["worker-tpu"]


def test_services_start_in_order(composition: Composition) -> None:
    order = [service.name for service in composition.start_order("cpu")]
    assert order.index("postgres") < order.index("migrate") < min(order.index("api"), order.index("worker"))
    assert composition.services["migrate"].waits_for == {"postgres": "service_healthy"}
    for name in ("api", *WORKERS):
        assert composition.services[name].waits_for["migrate"] == "service_completed_successfully"
    for service in composition.services.values():
        for other, condition in service.waits_for.items():
            if condition == "service_healthy":
                assert composition.services[other].healthcheck, f"{service.name} waits for the health of {other}"


def test_long_running_services_have_health_checks_restarts_and_time_to_stop(composition: Composition) -> None:
    for service in composition.services.values():
        lasting = service.name != "migrate"
        assert service.raw["restart"] == ("unless-stopped" if lasting else "no"), service.name
        assert bool(service.healthcheck) == lasting, service.name
    for service in composition.services.values():
        if service.accelerator is not None:
            assert service.raw["init"] is True, "signals that a process does not handle yet end it"
    assert {composition.services[name].raw["stop_grace_period"] for name in WORKERS} == {"60s"}


def test_health_checks_use_only_programs_of_the_image(roles: dict[str, Service]) -> None:
    for service in roles.values():
        match service.healthcheck:
            case ("python", "-m", module):
                assert importlib.util.find_spec(module) is not None, service.name
            case ("python", "-c", code):
                ast.parse(code)
            case other:
                assert not other, f"{service.name}: {other}"


def test_volumes_are_named_and_mounted_where_services_read_them(
    composition: Composition, dockerfile: Dockerfile
) -> None:
    mounted = set()
    for service in composition.services.values():
        targets = {volume["target"]: volume for volume in service.raw.get("volumes", [])}
        mounted |= {volume["source"] for volume in targets.values() if volume["type"] == "volume"}
        if service.command and service.command[0] in ("api", "worker"):
            assert targets[dockerfile.final.environment["HF_HOME"]]["source"] == "hub-cache"
            assert targets["/models"]["read_only"] is True
            assert len(targets) == 2
        if service.command and service.command[0] == "deliver":
            assert targets["/authorities"]["read_only"] is True
    assert mounted == composition.volumes == {"postgres-data", "hub-cache"}


def test_containers_write_to_no_root_and_their_logs_have_an_end() -> None:
    services = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    for name, service in services.items():
        assert service["logging"]["options"] == {"max-size": "20m", "max-file": "5"}, name
        assert service.get("read_only") is (None if name == "postgres" else True), name


def test_every_container_has_a_limit_of_memory_that_is_the_one_of_its_pod(
    example: dict[str, str], composition: Composition
) -> None:
    assert all("mem_limit" in service.raw for service in composition.services.values())
    pods = {"api": "overlays/cpu", "worker": "overlays/cpu", "worker-gpu": "overlays/gpu", "worker-tpu": "overlays/tpu"}
    for name, folder in pods.items():
        service = composition.services[name]
        limit = kubernetes.roles(folder)[service.command[0]].container["resources"]["limits"]["memory"]
        assert limit == service.raw["mem_limit"].upper() + "i", name
    chosen = {"API_MEMORY": "3g", "WORKER_MEMORY": "40g", "POSTGRES_MEMORY": "4g"}
    changed = read_composition(example | chosen).services
    assert {name: changed[name].raw["mem_limit"] for name in (*pods, "postgres")} == {
        "api": "3g",
        "postgres": "4g",
        **dict.fromkeys(WORKERS, "40g"),
    }
