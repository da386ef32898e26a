"""What Hugging Face tools note of columns in a schema's metadata: which are images, and the names of classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

FEATURES_KEY = b"huggingface"
MEDIA = ("Image", "Audio", "Video", "Pdf", "Nifti", "Mesh")
"""Features that are files: bytes, a path, or both."""


def note_features(schema: pa.Schema, features: Mapping[str, Any]) -> pa.Schema:
    """Return the schema with features noted where Hugging Face tools look for them."""
    noted = {**(schema.metadata or {}), FEATURES_KEY: json.dumps({"info": {"features": features}}).encode()}
    return schema.with_metadata(noted) if features else schema


def noted_features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features noted in a schema, by column, or an empty dict."""
    try:
        found = json.loads((schema.metadata or {}).get(FEATURES_KEY, b"{}"))
        features = found.get("info", {}).get("features")
    except (ValueError, AttributeError):
        return {}
    return features if isinstance(features, dict) else {}
