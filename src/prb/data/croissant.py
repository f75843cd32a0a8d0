"""Croissant 1.0 metadata (mlcommons.org/croissant) of Parquet files in our schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prb.data.convert import RECORDS, TEXTS
from prb.data.source import EXTRA
from prb.runs import content_digest

CONFORMS = "http://mlcommons.org/croissant/1.0"
TERMS = """citeAs column data dataType equivalentProperty examples extract field fileObject fileProperty fileSet format
    includes isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate
    separator source subField transform"""
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    **{term: f"cr:{term}" for term in TERMS.split()},
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
}
TYPES = {**dict.fromkeys((*TEXTS, EXTRA), "sc:Text"), "drift": "sc:Boolean", "rating": "sc:Float"}


def croissant(
    name: str, description: str, license_: str | None, files: Mapping[str, Path], fingerprint: str
) -> dict[str, Any]:
    """One file object and one record set per split; paths are relative to the metadata."""
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS,
        "name": name,
        "description": description,
        **({"license": license_} if license_ else {}),
        "identifier": f"sha256:{fingerprint}",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": path.name,
                "name": path.name,
                "contentUrl": path.name,
                "contentSize": f"{path.stat().st_size} B",
                "encodingFormat": "application/x-parquet",
                "sha256": content_digest(path),
            }
            for path in files.values()
        ],
        "recordSet": [_records(split, path.name) for split, path in files.items()],
    }


def _records(split: str, file: str) -> dict[str, Any]:
    fields = [_field(split, file, column, kind) for column, kind in TYPES.items()]
    fields += [_list(split, file, column, keys) for column, keys in RECORDS.items()]
    return {"@type": "cr:RecordSet", "@id": split, "name": split, "key": {"@id": f"{split}/id"}, "field": fields}


def _field(split: str, file: str, column: str, kind: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"{split}/{column}",
        "name": column,
        "dataType": kind,
        "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
    }


def _list(split: str, file: str, column: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """A list of objects, whose keys are fields of their own."""
    source = {"fileObject": {"@id": file}, "extract": {"column": column}}
    return {
        "@type": "cr:Field",
        "@id": f"{split}/{column}",
        "name": column,
        "repeated": True,
        "subField": [
            {
                "@type": "cr:Field",
                "@id": f"{split}/{column}/{key}",
                "name": key,
                "dataType": "sc:Text",
                "source": {**source, "transform": {"jsonPath": key}},
            }
            for key in keys
        ],
    }
