"""The resource that asks the operator of Prometheus to read pods: the part of its schema that is used here."""

from __future__ import annotations

from tests.kubernetes.keda import STRING, strict

_LABELS = {"type": "object", "additionalProperties": STRING}
_RELABELING = strict("targetLabel replacement", targetLabel=STRING, replacement=STRING)
_ENDPOINT = strict(
    "port",
    port=STRING,
    path=STRING,
    interval=STRING,
    relabelings={"type": "array", "items": _RELABELING},
)

POD_MONITOR = strict(
    "apiVersion kind metadata spec",
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=strict("name", name=STRING, labels=_LABELS),
    spec=strict(
        "selector podMetricsEndpoints",
        selector=strict("matchLabels", matchLabels=_LABELS),
        podMetricsEndpoints={"type": "array", "items": _ENDPOINT},
    ),
)
