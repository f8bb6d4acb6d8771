"""The resource that asks KEDA for workers: the part of its schema that is used here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STRING, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}


def strict(required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


_RULES = strict(
    "policies",
    stabilizationWindowSeconds=COUNT,
    policies={
        "type": "array",
        "items": strict(
            "type value periodSeconds", type={"enum": ["Pods", "Percent"]}, value=COUNT, periodSeconds=COUNT
        ),
    },
)
SCALED_OBJECT = strict(
    "apiVersion kind metadata spec",
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=strict("name", name=STRING, labels={"type": "object", "additionalProperties": STRING}),
    spec=strict(
        "scaleTargetRef triggers",
        scaleTargetRef=strict("name", name=STRING),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        fallback=strict(
            "failureThreshold replicas",
            failureThreshold=COUNT,
            replicas=COUNT,
            behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
        ),
        advanced=strict(
            "horizontalPodAutoscalerConfig",
            horizontalPodAutoscalerConfig=strict(
                "behavior", behavior=strict("scaleUp scaleDown", scaleUp=_RULES, scaleDown=_RULES)
            ),
        ),
        triggers={
            "type": "array",
            "items": strict(
                "type metadata",
                type={"const": "prometheus"},
                name=STRING,
                metricType={"enum": ["AverageValue", "Value"]},
                # All of it is text, numbers too.
                metadata=strict(
                    "serverAddress query threshold",
                    serverAddress=STRING,
                    query=STRING,
                    threshold=STRING,
                    activationThreshold=STRING,
                    ignoreNullValues=STRING,
                ),
            ),
        },
    ),
)
"""The part of KEDA's resource that is used here. KEDA publishes its schema only in its own repository."""
