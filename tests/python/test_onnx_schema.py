"""protos/onnx.proto against the installed onnx package: every message, field and enum value."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped, unused-ignore]

SCHEMA = Path(__file__).parents[2] / "protos" / "onnx.proto"
FIELD = descriptor_pb2.FieldDescriptorProto
TYPES = {v.number: v.name.removeprefix("TYPE_").lower() for v in FIELD.Type.DESCRIPTOR.values}
LABELS = {v.number: v.name.removeprefix("LABEL_").lower() for v in FIELD.Label.DESCRIPTOR.values}

Table = dict[str, dict[str, str]]


def installed() -> Table:
    """{message or enum: {name: description}} of the installed onnx."""
    file = descriptor_pb2.FileDescriptorProto()
    onnx.onnx_ml_pb2.DESCRIPTOR.CopyToProto(file)
    table: Table = {}

    def add_enum(scope: str, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        table[scope + enum.name] = {value.name: str(value.number) for value in enum.value}

    def add_message(scope: str, message: descriptor_pb2.DescriptorProto) -> None:
        inner = f"{scope}{message.name}."
        fields = table[scope + message.name] = {}
        for field in message.field:
            kind = field.type_name.rsplit(".", 1)[-1] if field.type_name else TYPES[field.type]
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            label = f"oneof {oneof}" if oneof else LABELS[field.label]
            packed = " packed" if field.options.packed else ""
            fields[field.name] = f"{label} {kind} = {field.number}{packed}"
        for enum in message.enum_type:
            add_enum(inner, enum)
        for nested in message.nested_type:
            add_message(inner, nested)

    for enum in file.enum_type:
        add_enum("", enum)
    for message in file.message_type:
        add_message("", message)
    return table


def ours(text: str) -> Table:
    """The same table, read from the schema's text."""
    tokens = re.findall(r'"[^"]*"|[\w.]+|[{}=;\[\],]', re.sub(r"//[^\n]*", "", text))
    table: Table = {}
    scopes: list[tuple[str, str]] = []  # (keyword, name)
    statement: list[str] = []
    for token in tokens:
        if token not in ("{", "}", ";"):
            statement.append(token)
            continue
        if token == "{":
            scopes.append((statement[0], statement[1]))
            if statement[0] != "oneof":
                table[".".join(name for _, name in scopes)] = {}
        elif token == "}":
            assert not statement, statement
            scopes.pop()
        elif scopes and statement[0] != "reserved":
            keyword, name = scopes[-1]
            owner = ".".join(scope for kind, scope in scopes if kind != "oneof")
            if keyword == "enum":
                table[owner][statement[0]] = statement[2]
            else:
                label = [f"oneof {name}"] if keyword == "oneof" else [statement.pop(0)]
                kind, field, equals, number, *options = statement
                assert equals == "=", statement
                packed = " packed" if options == ["[", "packed", "=", "true", "]"] else ""
                assert packed or not options, statement
                table[owner][field] = f"{label[0]} {kind.rsplit('.', 1)[-1]} = {number}{packed}"
        statement = []
    assert not scopes
    return table


def test_every_message_enum_field_and_number_is_that_of_onnx() -> None:
    if not onnx.__version__.startswith("1.23."):
        pytest.skip(f"the schema is written for onnx 1.23, installed is {onnx.__version__}")
    assert ours(SCHEMA.read_text()) == installed()


def test_a_changed_number_is_noticed() -> None:
    text = SCHEMA.read_text()
    assert ours(text.replace("optional bytes raw_data = 9;", "optional bytes raw_data = 19;")) != ours(text)
