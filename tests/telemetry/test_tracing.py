"""Whether there are traces is said by the variables of OpenTelemetry, and without them nothing of it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from settings.telemetry import Exporter, TracingError, TracingSettings
from telemetry.opening import open_tracer
from tests.services import free_port
from tests.telemetry.recording import (
    CALLER,
    OTHER_CALLER,
    TRACE_ID,
    UNSAMPLED_CALLER,
    RecordingTracer,
    attributes,
    links,
    parent_id,
    trace_id,
)

COLLECTOR = "http://collector.example.com:4318"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "exporters"),
    [
        ({}, ()),
        ({"OTEL_TRACES_EXPORTER": ""}, ()),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR}, ()),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, (Exporter.OTLP,)),
        ({"OTEL_TRACES_EXPORTER": "console,otlp"}, (Exporter.CONSOLE, Exporter.OTLP)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR}, (Exporter.OTLP,)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": COLLECTOR}, (Exporter.OTLP,)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": COLLECTOR, "OTEL_SDK_DISABLED": "true"}, ()),
    ],
)
def test_there_are_traces_where_an_exporter_or_a_collector_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], exporters: tuple[Exporter, ...]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert TracingSettings().exporters == exporters


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "'otlp', 'console' or 'none'"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "'http/protobuf' or 'grpc'"),
        ("OTEL_SDK_DISABLED", "perhaps", "a valid boolean"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(TracingError) as refused:
        TracingSettings.read()
    message = str(refused.value)
    assert message.startswith(f"{variable} has the value '{value}', which should be {expected}")
    assert "\n" not in message


LOAD = """
import sys
import workers.delivery.__main__, workers.engine_loop.serving
from settings.telemetry import TracingError, TracingSettings
from telemetry.opening import open_tracer
{hide}
tracer = open_tracer(TracingSettings.read(), "worker")
print(tracer is None, "opentelemetry.sdk.trace" in sys.modules, "telemetry.spans" in sys.modules)
"""


def loaded(hide: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOAD.format(hide=hide)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_of_opentelemetry_is_loaded_without_traces() -> None:
    """The API is looked at by tests/api/test_front_end_only.py. Redis's client loads the SDK's metrics by itself."""
    outcome = loaded()
    assert outcome.stdout.split() == ["True", "False", "False"], outcome.stderr


def test_traces_without_their_packages_are_an_error_that_says_what_to_do() -> None:
    outcome = loaded("sys.modules['opentelemetry.sdk.resources'] = None", OTEL_TRACES_EXPORTER="otlp")
    assert outcome.returncode == 1
    last_line = outcome.stderr.strip().splitlines()[-1]
    assert last_line.startswith("settings.telemetry.TracingError: the OTEL_* variables ask for traces")
    assert "install the extra `telemetry`" in last_line


def test_a_protocol_whose_package_is_missing_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", COLLECTOR)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(TracingError, match="opentelemetry-exporter-otlp-proto-grpc"):
        open_tracer(TracingSettings(), "api")


def test_a_process_ends_in_time_although_its_collector_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("telemetry.spans.CLOSE_SECONDS", 0.1)
    tracer = open_tracer(TracingSettings(), "api")
    assert tracer is not None
    with tracer.span("work"):
        pass
    began = time.monotonic()
    tracer.close()
    assert time.monotonic() - began < 5, "the SDK itself would wait for half a minute"


def test_a_span_goes_on_in_the_trace_of_its_parent_and_is_linked_to_others() -> None:
    tracer = RecordingTracer()
    with tracer.span("one", parent=CALLER, links=[(OTHER_CALLER, {"n": 1}), ("nonsense", {})]) as span:
        assert span.traceparent is not None
        assert span.log_fields["trace_id"] == TRACE_ID
        with tracer.span("two", parent=span.traceparent):
            pass
    one, two = tracer.only("one"), tracer.only("two")
    assert [trace_id(one), trace_id(two)] == [TRACE_ID, TRACE_ID]
    assert parent_id(one) == CALLER.split("-")[2]
    assert links(one) == {(OTHER_CALLER.split("-")[1], OTHER_CALLER.split("-")[2])}


@pytest.mark.parametrize("traceparent", [None, "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_parent_that_is_not_valid_begins_a_trace(traceparent: str | None) -> None:
    tracer = RecordingTracer()
    with tracer.span("one", parent=traceparent):
        pass
    assert parent_id(tracer.only("one")) is None


def test_what_is_not_sampled_leaves_no_span_no_context_and_no_log_fields() -> None:
    by_caller, never = RecordingTracer(), RecordingTracer(ParentBased(ALWAYS_OFF))
    with by_caller.span("one", parent=UNSAMPLED_CALLER) as one, never.span("two") as two:
        for span in (one, two):
            assert span.traceparent is None
            assert span.log_fields == {}
    assert [*by_caller.spans, *never.spans] == []


def test_a_failed_span_has_the_kind_of_its_error_and_not_its_message() -> None:
    tracer = RecordingTracer()

    def fail() -> None:
        with tracer.span("one"):
            raise ValueError("a text of a client")

    with pytest.raises(ValueError, match="client"):
        fail()
    span = tracer.only("one")
    assert attributes(span) == {"error.type": "ValueError"}
    assert not span.status.is_ok
    assert "client" not in span.to_json()
