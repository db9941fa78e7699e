"""Catalog: names, handles, values, MCP definitions, sizes."""

from __future__ import annotations

import hashlib
import json

import jsonschema
import pytest

from benchmarks.scalemcp_mini.catalog import ToolDefinition, build_catalog
from benchmarks.scalemcp_mini.words import YEARS


def test_values_are_the_documented_hash() -> None:
    catalog = build_catalog(97, 40, 8)
    company, metric = next(iter(catalog.tools))
    text = "\x1f".join(["value", "97", "", company, metric, "2020"]).encode()
    expected = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") % 10_000
    assert catalog.value(company, metric, 2020) == expected
    values = {catalog.value(company, metric, year) for year in YEARS}
    assert len(values) > 5
    assert all(0 <= value <= 9999 for value in values)


def test_another_seed_gives_other_names_handles_and_values() -> None:
    one, two = build_catalog(11, 40, 8), build_catalog(97, 40, 8)
    shared = set(one.tools) & set(two.tools)
    assert len(shared) < 0.5 * len(one.tools)
    for pair in shared:
        assert one.tools[pair].name != two.tools[pair].name
    assert any(one.value(*pair, 2020) != two.value(*pair, 2020) for pair in shared) or not shared


@pytest.mark.parametrize(("companies", "metrics"), [(40, 8), (625, 8)])
def test_handles_are_unique_and_companies_share_words(companies: int, metrics: int) -> None:
    catalog = build_catalog(5, companies, metrics)
    assert len(catalog.tools) == companies * metrics
    assert len({tool.name for tool in catalog.tools.values()}) == companies * metrics
    prefixes = [company.split()[0] for company in catalog.companies]
    assert max(prefixes.count(prefix) for prefix in set(prefixes)) >= 3


def test_definitions_are_mcp_shaped_and_round_trip() -> None:
    for tool in list(build_catalog(11, 40, 8).tools.values())[:40]:
        definition = json.loads(tool.canonical)
        schema = definition["inputSchema"]
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate({"year": 2020}, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"year": 1999}, schema)
        assert ToolDefinition.from_mcp(definition) == tool
        assert tool.digest == hashlib.sha256(tool.canonical.encode()).hexdigest()


@pytest.mark.parametrize(
    ("companies", "metrics", "message"),
    [(0, 8, "companies is 0"), (785, 8, "1 to 784"), (40, 13, "1 to 12"), (784, 12, "handles")],
)
def test_an_impossible_size_says_what_is_allowed(
    companies: int, metrics: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_catalog(1, companies, metrics)
