"""Protocol buffers as tables of messages, made into classes by the protobuf library: no generated code to keep in step."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# message → field → (number, type); a type in brackets is repeated, one with a capital is a message.
Messages = dict[str, dict[str, tuple[int, str]]]

_Field = descriptor_pb2.FieldDescriptorProto


def messages(**fields: str) -> Messages:
    """Of each message its fields: `NUMBER TYPE NAME, …`."""
    rows = {name: [row.split() for row in text.split(",")] for name, text in fields.items()}
    return {name: {field: (int(n), type_) for n, type_, field in found} for name, found in rows.items()}


def message_class(package: str, messages: Messages, root: str) -> Any:
    """The class of the message `root`. Numbers that are 0 are left out, as proto3 does."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, type_) in fields.items():
            message.field.append(_field(package, field_name, number, type_))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{root}"))


def _field(package: str, name: str, number: int, type_: str) -> descriptor_pb2.FieldDescriptorProto:
    single = type_.strip("[]")
    field = _Field(name=name, number=number)
    field.label = _Field.LABEL_OPTIONAL if single == type_ else _Field.LABEL_REPEATED
    if single[0].isupper():
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{single}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{single.upper()}")
    return field
