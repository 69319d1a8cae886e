"""The schema of a tool when it is registered, and the arguments of a call, whatever a policy writes."""

import http.server
import json
import math
import threading
import time
from typing import Any

import pytest

from retool_env.arguments import MAX_NAME_CHARS, MAX_PATTERN_CHARS
from retool_env.config import EpisodeConfig
from retool_env.episode import Episode
from retool_env.errors import ConfigurationError
from retool_env.problems import Problem
from retool_env.protocol import Feedback, RunCode
from retool_env.tools import Tool, ToolRegistry, ToolResult

PROBLEM = Problem(id="p", question="What is {6} * 7?", answer="42")
NUMBER = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}


def make(parameters: Any, name: str = "double") -> Tool:
    return Tool(name, "Doubles a number.", parameters, lambda x: str(2 * x))


def with_x(schema: Any, **more: Any) -> Tool:
    return make({"type": "object", "properties": {"x": schema}, **more})


@pytest.mark.parametrize(
    "reference",
    [
        "https://example.com/schema.json",
        "file:///etc/passwd",
        "other.json",
        "#/$defs/none",
        "#none",
        "#/properties/x/allOf/first",
        "#/required",
        "#/x-parts/wrong",
        "http://[",
    ],
)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_a_reference_that_leads_out_of_the_schema_is_an_error_at_once(reference: str, keyword: str) -> None:
    x = {"allOf": [{keyword: reference}]}
    wrong = {"wrong": {"type": "nonsense"}}
    with pytest.raises(ConfigurationError, match="tools: the schema of 'double'"):
        ToolRegistry([with_x(x, required=["x"], **{"x-parts": wrong})])
    hop = {"$defs": {"hop": {"items": {"not": x}}}}  # found behind another reference, too
    with pytest.raises(ConfigurationError, match="tools: the schema of 'double'"):
        ToolRegistry([with_x({"$ref": "#/$defs/hop"}, required=["x"], **hop, **{"x-parts": wrong})])


def test_references_within_the_schema_work_and_data_that_looks_like_one_is_none() -> None:
    tree = {
        "type": "object",
        "properties": {"n": {"$ref": "#/x-parts/n"}, "next": {"$ref": "#tree"}},
        "$anchor": "tree",
    }
    tool = with_x(
        {"$ref": "#/$defs/tree", "default": {"$ref": "no/reference"}},
        **{
            "$defs": {"tree": tree},
            "x-parts": {"n": {"type": "integer"}},
            "$schema": "http://json-schema.org/draft-07/schema#",
        },
    )
    found = ToolRegistry([tool]).check("double", {"x": {"next": {"next": {"n": "1"}}}})
    assert found == "argument x.next.next.n must be a integer"
    assert tool.check({"x": {"next": {"n": 1}}}) is None
    inner = {"$id": "https://example.com/inner", "$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}
    assert with_x(inner).check({"x": 1}) == "argument x must be a null"
    assert len(ToolRegistry([with_x(inner), make({"type": "object", "$ref": "#"}, name="again")])) == 3


def test_checking_a_call_fetches_nothing() -> None:
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            tool = with_x({"$ref": f"http://127.0.0.1:{server.server_port}/x.json"})
            with pytest.raises(ConfigurationError, match="nothing is fetched"):
                ToolRegistry([tool])
            with pytest.raises(Exception, match=r"x\.json"):  # without a registry nobody has checked the schema
                tool.check({"x": 1})
        finally:
            server.shutdown()
            thread.join()
    assert not asked


@pytest.mark.parametrize(
    "number", [math.nan, math.inf, -math.inf, 10**400, 10**5000], ids=["nan", "inf", "-inf", "long", "huge"]
)
@pytest.mark.parametrize(
    "schema", [{"multipleOf": 0.01}, {"multipleOf": 2}, {"maximum": 1.5}, {"enum": [1]}, {"not": {}}]
)
def test_a_number_that_cannot_be_checked_is_explained_in_words(number: float, schema: Any) -> None:
    complaint = with_x({"type": "number", **schema}).check({"x": number})
    assert complaint is None or complaint.startswith("argument")


def test_arguments_that_are_nested_too_deeply_are_explained_in_words() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    again = {"type": "array", "items": {"$ref": "#/properties/x"}}
    for tool in (with_x(again), with_x({"uniqueItems": True})):
        assert tool.check({"x": deep}) == "arguments are nested too deeply"


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "^[a-z]+$"}, "abc", "abc1"),
        ({"pattern": r"\s+$"}, "a ", " " * MAX_PATTERN_CHARS + "a"),
        ({"uniqueItems": True}, [1, True, "1", None, [1], {"a": 1}, {"a": 2}], [{"a": [1]}, {"a": [1.0]}]),
        ({"uniqueItems": True}, [[0], [False]], [2, [], 2.0]),
        ({"uniqueItems": False}, [1, 1], None),
    ],
)
def test_patterns_and_unique_items(schema: Any, good: object, bad: object) -> None:
    tool = with_x({"type": ["string", "array"], **schema})
    assert tool.check({"x": good}) is None
    assert str(tool.check({"x": bad})).startswith("argument x")


@pytest.mark.parametrize("dialect", [{}, {"$schema": "https://json-schema.org/draft/2020-12/schema"}])
def test_a_policy_cannot_make_a_sane_schema_slow(dialect: Any) -> None:
    slow = " " * 100_000 + "a"
    objects = [{"a": number} for number in range(10_000)]
    tool = make(
        {
            "type": "object",
            "additionalProperties": False,
            "patternProperties": {r"\s+$": {"pattern": r"\s+$", "$ref": "#/$defs/x"}},
            "$defs": {"x": {"uniqueItems": True, "items": {"patternProperties": {r"\s+$": {}}}}},
            "properties": {"again": {"$ref": "#"}},
            **dialect,
        },
    )
    ToolRegistry([tool])
    start = time.thread_time()
    for arguments in ({"a ": slow}, {slow: 1}, {"a ": objects}, {"a ": [{slow: 1}]}):
        tool.check(arguments)
        tool.check({"again": {"again": arguments}})
    assert time.thread_time() - start < 10  # minutes, if one of them were tried; a fraction of a second as it is
    assert tool.check({slow: 1}) == f"a name in the arguments is longer than {MAX_NAME_CHARS} characters"


SCHEMAS = (
    {"type": "number", "multipleOf": 0.01},
    {"type": "integer", "multipleOf": 3},
    {"pattern": "^[a-z]+$"},
    {"uniqueItems": True, "items": {"$ref": "#/properties/x"}},
    {"type": "object", "patternProperties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    {"anyOf": [{"type": "null"}, {"required": ["a"]}]},
)


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@pytest.mark.parametrize(
    "x",
    [
        "NaN",
        "Infinity",
        "1e999",
        "-1e999",
        "1" * 401,
        "9" * 5000,
        "0.1",
        "[" * 500 + "]" * 500,
        '{"\\ud800": {}}',
        '""',
    ],
)
@pytest.mark.parametrize("form", ["json", "twice", "xml"])
def test_whatever_arguments_are_written_the_turn_is_read_and_counted(schema: Any, x: str, form: str) -> None:
    tool = Tool("f", "", {"type": "object", "properties": {"x": schema}}, lambda x: "done")
    attempt = Episode(PROBLEM, EpisodeConfig(protocol="tool_calls", tools=(tool,)))
    arguments = f'{{"x": {x}}}'
    if form == "xml":
        text = f"<tool_call><function=f><parameter=x>{x}</parameter></function></tool_call>"
    else:
        written = json.dumps(arguments) if form == "twice" else arguments
        text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    action = attempt.read(text)
    if isinstance(action, RunCode):
        attempt.observe([ToolResult("done")])
    else:
        assert isinstance(action, Feedback)
        action.message.encode()
        attempt.observe()
    assert attempt.turns == 1
    assert not attempt.over
