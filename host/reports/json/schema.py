"""JSON from dataclasses: one definition by which it is written, read, documented and validated.

Each dataclass becomes a msgspec.Struct with the same fields in the same order. A field with a default is left out where
it has it. `special` names the fields that JSON has in another form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, UnsetType

from memleak_android.host.profile.field_types import ALWAYS
from memleak_android.host.profile.site_id import site_id

Convert = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


class Codec(NamedTuple):
    """A type in JSON, for msgspec, and the conversions to it and back."""

    type: Any
    write: Convert = same
    read: Convert = same


class Field(NamedTuple):
    """A field in JSON. default: NODEFAULT = required, UNSET = may be absent. write: of the attribute `source`."""

    name: str
    type: Any
    default: Any
    source: str
    write: Convert = same


class Member(NamedTuple):
    """A field of a dataclass. read: of the JSON field of its name; read_struct: of the whole struct; neither = not read."""

    fields: list[Field]
    read: Convert | None = None
    read_struct: Convert | None = None


class Form:
    """A dataclass in JSON: `struct` is its msgspec type.

    Its properties that are annotated with a Meta are written too. The `id` of an object with frames is made anew from
    them, so that reports of versions with other ids compare.
    """

    def __init__(self, schema: Schema, cls: Any) -> None:
        hints = get_type_hints(cls, include_extras=True)
        members = {field.name: _member(schema, cls, field, hints[field.name]) for field in fields(cls)}
        properties = {name: found.fget for name, found in vars(cls).items() if isinstance(found, property)}
        results = {
            name: get_type_hints(get, include_extras=True)["return"] for name, get in properties.items()
        }
        self.fields = [field for member in members.values() for field in member.fields]
        self.fields += [
            Field(n, hint, NODEFAULT, n) for n, hint in results.items() if get_origin(hint) is Annotated
        ]
        self.struct = msgspec.defstruct(
            cls.__name__,
            [field[:3] for field in self.fields],
            namespace={"__doc__": cls.__doc__},
            rename={name: renamed for (owner, name), renamed in schema.names.items() if owner is cls},
        )
        self._cls = cls
        # a million sites and their frames pass here: all attributes in one call, then those that change
        self._get = _getter([field.source for field in self.fields])
        self._writes = [(i, field.write) for i, field in enumerate(self.fields) if field.write is not same]
        self._plain = [name for name, member in members.items() if member.read is not None]
        self._get_plain = _getter(self._plain)
        self._reads = [(name, one.read) for name, one in members.items() if one.read not in (None, same)]
        self._struct_reads = [(name, one.read_struct) for name, one in members.items() if one.read_struct]

    def write(self, value: Any) -> Any:
        values = list(self._get(value))
        for i, write in self._writes:
            values[i] = write(values[i])
        return self.struct(*values)

    def read(self, struct: Any) -> Any:
        arguments = dict(zip(self._plain, self._get_plain(struct), strict=True))
        for name, read in self._reads:
            arguments[name] = read(arguments[name])
        for name, read_struct in self._struct_reads:
            arguments[name] = read_struct(struct)
        if "frames" in arguments and "id" in arguments and not arguments.get("frames_left_out"):
            arguments["id"] = site_id(arguments["frames"])
        return self._cls(**arguments)


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _member(schema: Schema, cls: Any, field: dataclasses.Field[Any], hint: Any) -> Member:
    name, default = field.name, field.default
    codec = schema.codec(get_args(hint)[0] if default is None else hint)
    member = Member([Field(name, codec.type, NODEFAULT, name, codec.write)], codec.read)
    if default is not MISSING:
        is_always = ALWAYS in getattr(hint, "__metadata__", ())
        write = codec.write if is_always else partial(_write_optional, codec.write, default)
        read = partial(_read_optional, codec.read, default)
        member = Member([Field(name, codec.type | UnsetType, UNSET, name, write)], read)
    special = schema.special.get((cls, name))
    return special(schema, member) if special else member


def _write_optional(write: Convert, default: Any, value: Any) -> Any:
    return UNSET if value is default or value == default else write(value)


def _read_optional(read: Convert, default: Any, value: Any) -> Any:
    return default if value is UNSET else read(value)


class Schema:
    """codecs: by type, or by the marker of an Annotated type. names, special: by class and field."""

    def __init__(
        self,
        codecs: Mapping[Any, Callable[[Schema], Codec]],
        names: Mapping[tuple[type, str], str],
        special: Mapping[tuple[type, str], Callable[[Schema, Member], Member]],
    ) -> None:
        self._codecs = codecs
        self.names, self.special = names, special
        self._forms: dict[type, Form] = {}

    def json_schema(self, cls: type, title: str) -> dict[str, Any]:
        """JSON Schema (2020-12)."""
        schema = msgspec.json.schema(self.form(cls).struct)
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}

    def form(self, cls: type) -> Form:
        if cls not in self._forms:
            self._forms[cls] = Form(self, cls)
        return self._forms[cls]

    def codec(self, hint: Any) -> Codec:
        origin, parts = get_origin(hint), get_args(hint)
        if origin is Annotated:
            markers = [mark for mark in parts[1:] if not isinstance(mark, Meta) and mark in self._codecs]
            codec = self._codecs[markers[0]](self) if markers else self.codec(parts[0])
            for meta in parts[1:]:
                codec = codec._replace(type=Annotated[codec.type, meta]) if isinstance(meta, Meta) else codec
            return codec
        if hint in self._codecs:
            return self._codecs[hint](self)
        if origin in (Union, UnionType):  # X | None
            codec = self.codec(parts[0])
            write, read = (same if one is same else partial(_or_none, one) for one in codec[1:])
            return Codec(codec.type | None, write, read)
        if origin is tuple:
            codec = self.codec(parts[0])
            return Codec(
                _list_of(codec.type), partial(_each, list, codec.write), partial(_each, tuple, codec.read)
            )
        if isinstance(hint, type) and is_dataclass(hint):
            form = self.form(hint)
            return Codec(form.struct, form.write, form.read)
        return Codec(hint)


def _list_of(element: Any) -> Any:
    return list[element]


def _or_none(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _each(sequence: Callable[[Any], Any], convert: Convert, values: Any) -> Any:
    return sequence(values if convert is same else map(convert, values))
