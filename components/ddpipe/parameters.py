"""Parameters, declared once: dataclass fields with type, default, allowed values and one sentence of help.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Recipe(Parameters):
        epochs: int = parameter(15, "Number of epochs.", Between(1, 100_000))

The options of the command line, the inputs of pipeline components and the parameters of the compiled packages
are generated from these fields; nothing repeats them. A parameter with its own field in a pipeline's form
names it (`form="train_epochs"`); the others of a group share one field, the group's `others` (form.py).
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import textwrap
from collections import abc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Protocol, Self, TypeVar, get_args, get_origin, get_type_hints

from ddpipe.errors import ParameterError, listed

F = TypeVar("F", bound=Callable[..., object])


class Allowed(Protocol):
    """The values that a parameter may have; `str` describes them in a message: "not {allowed}"."""

    def __contains__(self, value: Any) -> bool: ...  # noqa: ANN401 - of the parameter's own type


@dataclass(frozen=True, slots=True)
class Between:
    """Numbers from `low` to `high`; `open_low` and `open_high` exclude the limit itself."""

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = self.low < value if self.open_low else self.low <= value
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low, high = f"{self.low:.10g}", f"{self.high:.10g}"
        if not (self.open_low or self.open_high):
            return f"from {low} to {high}"
        above = "greater than" if self.open_low else "of at least"
        return f"{above} {low} and {'less than' if self.open_high else 'at most'} {high}"


AUTO = "auto"  # in place of a value that ddpipe chooses


@dataclass(frozen=True, slots=True)
class OrAuto:
    """Numbers of a range, or `AUTO`."""

    allowed: Between

    def __contains__(self, value: float | str) -> bool:
        return value == AUTO if isinstance(value, str) else value in self.allowed

    def __str__(self) -> str:
        return f"{self.allowed}, or {AUTO}"


_MOST_NAMES = 5  # names of an object that a message lists
INLINE = 3  # up to this many names are listed on one line


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several names."""

    names: Collection[str]

    def __contains__(self, value: str) -> bool:
        return value in self.names

    def __str__(self) -> str:
        names = [name or "empty" for name in self.names]
        return " or ".join(names) if len(names) <= INLINE else "\n      ".join(["one of:", *names])


@dataclass(frozen=True, slots=True)
class Typical:
    """From where to where a search looks for the best value, where a user gives no other range."""

    low: float
    high: float
    # Whether factors count, not differences: as much is tried between 0.01 and 0.1 as between 0.1 and 1.
    log: bool = False


# The types of a value of each kind, and the kind in a message.
_KINDS: dict[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), ""),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),  # JSON may write 1.0 as 1
    bool: ((bool,), "true or false"),
    list: ((list, tuple), "a list"),
    dict: ((dict,), "an object"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One declared parameter."""

    name: str  # the command line writes hyphens in place of underscores
    kind: type  # str, int, float, bool, list or dict
    default: Any  # None if it is required
    help: str
    allowed: Allowed | None = None  # None for any value of this kind
    items: type = object  # str if a list or an object holds text only
    form: str = ""  # the field of a pipeline's form that holds it; empty if it is in no form
    alone: bool = False  # whether that field holds nothing else
    common: bool = False  # whether --help shows it; the others need --help-all
    typical: Typical | None = None  # where a search looks for its best value; None if it has no typical range
    shapes: bool = True  # whether the result depends on its value

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is None

    @property
    def may_be_auto(self) -> bool:
        """Whether it is a number, or `AUTO` in place of one."""
        return isinstance(self.allowed, OrAuto)

    @property
    def form_kind(self) -> type:
        """The type of its field in a form: no engine has one for a number or a word, so both are text."""
        return str if self.may_be_auto else self.kind

    def in_form(self, given: Any) -> Any:  # noqa: ANN401 - of the parameter's own type, or a channel
        """A value for its field in a form: where a word may stand for a number, engines take text only."""
        return str(given) if self.may_be_auto and type(given) in {int, float} else given

    def read(self, given: Any) -> Any:  # noqa: ANN401 - text, or of the parameter's own type
        """Its value from the text of an option or a field; validation rejects text that is no value."""
        if not isinstance(given, str) or self.kind not in {int, float, bool}:
            return given
        try:
            return _WORDS[given.lower()] if self.kind is bool else self.kind(given)
        except (KeyError, ValueError):
            return given

    def problem(self, value: object) -> str | None:
        """What is wrong with a value; None if it is valid."""
        if value is None and self.required:
            return f"`{self.name}` is missing"
        types, kind = _KINDS[self.kind]
        # In Python, and only there, a bool is an int.
        fits = isinstance(value, types) and (self.kind is bool or not isinstance(value, bool))
        fits = fits or (self.may_be_auto and value == AUTO)
        fits = fits and (self.allowed is None or value in self.allowed)
        if fits and not _others(value, self.items):
            return None
        kind += " of text" if self.items is str else ""
        wanted = " ".join(filter(None, [kind, str(self.allowed or "")])) or "text"
        return f"`{self.name}` is {self._shown(value)}, not {wanted}"

    def _shown(self, value: object) -> str:
        """A wrong value for a message; of an object only the names, because a value may be a password."""
        if self.kind is not dict:
            return repr(value)
        if not isinstance(value, dict):
            return f"a {type(value).__name__}"
        wrong = _others(value, self.items)[:_MOST_NAMES]
        return f"an object whose {', '.join(map(str, wrong)) or 'names'} cannot be used"


_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def _others(value: object, kind: type) -> list[object]:
    """The items of a list, or the names of those of an object, that are of another kind."""
    if isinstance(value, dict):
        return [name for name, item in value.items() if not isinstance(item, kind)]
    return [item for item in value if not isinstance(item, kind)] if isinstance(value, (list, tuple)) else []


def parameter(
    default: Any,  # noqa: ANN401 - the field's annotation says what it is
    help: str,  # noqa: A002 - what every parser calls it
    allowed: Allowed | None = None,
    *,
    compare: bool = True,
    form: str = "",
    common: bool = False,
    typical: Typical | None = None,
) -> Any:  # noqa: ANN401
    """A field of a dataclass of parameters: see `Parameter`."""
    # With `compare=False`, the result does not depend on its value. With `form`, it has a field of its own in
    # a pipeline's form; otherwise it is part of its group's `others`.
    metadata = {"default": default, "help": help, "allowed": allowed, "typical": typical, "form": form}
    metadata |= {"alone": bool(form), "common": common or bool(form)}
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, compare=compare, metadata=metadata)
    return field(default=default, compare=compare, metadata=metadata)


def declared(group: type[Parameters]) -> tuple[Parameter, ...]:
    """The parameters of a group, in the order of their fields."""
    kinds = _hints(group)  # type: ignore[arg-type]  # mypy takes __hash__ of its objects for the class's
    return tuple(
        Parameter(
            name=item.name,
            kind=_kind(kinds[item.name]),
            items=str if get_args(kinds[item.name])[-1:] == (str,) else object,
            shapes=bool(item.compare),
            **{**item.metadata, "form": item.metadata["form"] or group.others},
        )
        for item in fields(group)
        if "help" in item.metadata
    )


_WIDTH = 106  # of a docstring's lines, which editors indent by four


def with_declared(*groups: type[Parameters], without: Collection[str] = ()) -> Callable[[F], F]:
    """Write declared parameters into a function's signature and docstring, in place of `**options`."""
    found: dict[str, tuple[Parameter, str]] = {}
    for group in groups:
        written = {one.name: str(one.type) for one in fields(group)}
        for item in declared(group):
            if item.name not in without:
                kind = f"{written[item.name]} | str" if item.may_be_auto else written[item.name]
                found.setdefault(item.name, (item, kind))

    def decorate(function: F) -> F:
        signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        *own, _ = signature.parameters.values()
        options = [
            inspect.Parameter(item.name, keyword, default=item.default, annotation=kind)
            for item, kind in found.values()
        ]
        function.__dict__["__signature__"] = signature.replace(parameters=[*own, *options])
        lines = [
            textwrap.fill(f"    {item.name}: {item.help}", _WIDTH, subsequent_indent=" " * 8)
            for item, _ in found.values()
        ]
        text = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = re.sub(r"    options: .*", lambda _: "\n".join(lines), text, count=1)
        return function

    return decorate


def is_declared(name: str) -> bool:
    """Whether a group of parameters that is in use declares this name."""
    groups = [Parameters]
    for group in groups:
        groups += group.__subclasses__()
    return any(name == item.name for group in groups for item in fields(group))


_hints = functools.cache(get_type_hints)


def _kind(annotation: Any) -> type:  # noqa: ANN401
    """The JSON type behind an annotation."""
    kind: type = get_origin(annotation) or annotation
    return list if kind in {tuple, abc.Sequence} else dict if kind is abc.Mapping else kind


@dataclass(frozen=True, slots=True)
class Parameters:
    """A group of declared parameters: the base of a frozen dataclass whose fields are made by `parameter`."""

    what: ClassVar[str] = "the parameters are not valid"  # how the error about invalid values begins
    heading: ClassVar[str] = "Options"  # above these parameters in a help text
    others: ClassVar[str] = ""  # the field of a form that holds those without their own, as one object

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A valid group from names and values; parameters that are not named have their defaults."""
        names = [item.name for item in fields(cls)]
        unknown = [
            f"{name!r} is not a parameter; choose from {', '.join(names)}"
            for name in values
            if name not in names
        ]
        found = cls.from_run_values(values)
        refuse(cls.what, [*unknown, *found.problems()])
        return found

    @classmethod
    def from_run_values(cls, values: Mapping[str, Any]) -> Self:
        """The group out of the values of a whole run, which validation.problems has checked."""
        names = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A valid group from a JSON object of names and values."""
        try:
            values = json.loads(text)
        except ValueError as error:
            values = error
        if not isinstance(values, dict):
            refuse(cls.what, ["the text is not a JSON object of names and values"])
        return cls.from_dict(values)

    def validated(self) -> Self:
        """This group itself, if all of its values are valid."""
        refuse(self.what, self.problems())
        return self

    def problems(self) -> Iterator[str]:
        """What is wrong with single values or, if each is valid, with their combination."""
        found = [item.problem(getattr(self, item.name)) for item in declared(type(self))]
        yield from filter(None, found)
        if not any(found):
            yield from self.conflicts()

    def conflicts(self) -> Iterator[str]:
        """What is wrong with the combination of valid values; a group overrides this."""
        return iter(())

    def to_dict(self) -> dict[str, Any]:
        """Names and values."""
        return asdict(self)

    def to_json(self) -> str:
        """Names and values as `from_json` reads them."""
        return json.dumps(self.to_dict())


def refuse(what: str, problems: Iterable[str]) -> None:
    """Report all problems at once, if there are any, in an error that begins with `what`."""
    if found := list(problems):
        raise ParameterError(what=what, which="parameters", seen=listed(found), do="Correct these values.")
