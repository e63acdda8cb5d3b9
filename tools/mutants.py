"""Small mistakes that a person might have made, each in one place of a source file.

What nobody's test should notice is left alone: docstrings, annotations, texts, assertions, decorators.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "zeros": "ones", "ones": "zeros", "floor": "ceil"}
TWINS |= {"argmax": "argmin", "amax": "amin", "mean": "sum", "zeros_like": "ones_like", "ceil": "floor"}
# x.float() may become x. Of most other methods nobody would forget the call.
FORGOTTEN = {
    "float",
    "double",
    "detach",
    "clone",
    "contiguous",
    "long",
    "copy",
    "strip",
    "lower",
    "resolve",
    "expanduser",
}
TEXTS = {
    "setLevel",
    "warn",
    "warning",
    "info",
    "debug",
    "print",
    "Field",
    "TypeVar",
    "cast",
    "isinstance",
    "issubclass",
    "getattr",
}
ALIKE = {"min", "max", "allclose", "array_equal", "equal", "logical_and", "logical_or"}  # whatever the order
ABOUT = {"description", "help", "title", "stacklevel", "strict", "encoding", "repr", "examples"}  # keywords
TYPES = {"list", "dict", "tuple", "set", "frozenset", "type", "int", "float", "str", "bytes", "bool"}


class Scope(NamedTuple):
    """A class or function, by its dotted name; nothing outside of all."""

    name: str
    runs_at_import: bool


@dataclass(frozen=True)
class Mutant:
    path: str  # below the package
    lines: tuple[int, int]  # of the statement, or of its head
    scope: Scope
    old: str  # the changed lines, without their indentation
    new: str
    source: str  # of the whole file

    @property
    def key(self) -> str:
        """What it is, wherever in the function its lines are."""
        return f"{self.path} {self.scope.name}: {self.old} → {self.new}"

    def __str__(self) -> str:
        place = f"{self.path}:{self.lines[0]}" + (f" in {self.scope.name}" if self.scope.name else "")
        return f"{place}\n    - {self.old}\n    + {self.new}"


@dataclass(frozen=True)
class Place:
    """Something of a file, and what could stand there instead."""

    path: str
    node: ast.expr | ast.stmt
    new: str
    scope: Scope
    lines: tuple[int, int]

    def mutant(self, text: str) -> Mutant | None:
        """Of the file with this text; None if it would be the same file or none at all."""
        lines = text.encode().splitlines(keepends=True)
        first, last = self.node.lineno - 1, (self.node.end_lineno or self.node.lineno) - 1
        before = b"".join(lines[:first]) + lines[first][: self.node.col_offset]
        after = lines[last][self.node.end_col_offset :] + b"".join(lines[last + 1 :])
        source = (before + self.new.encode() + after).decode()
        try:
            if ast.dump(ast.parse(source)) == ast.dump(ast.parse(text)):
                return None
        except SyntaxError:
            return None
        old = b"".join(lines[first : last + 1]).decode()
        new = (
            lines[first][: self.node.col_offset] + self.new.encode() + lines[last][self.node.end_col_offset :]
        ).decode()
        return Mutant(self.path, self.lines, self.scope, _one_line(old), _one_line(new), source)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def places_of(path: str, text: str) -> list[Place]:
    found = _in_body(ast.parse(text).body, Scope("", True))
    return [Place(path, *one) for one in found]


def mutants_of(path: str, text: str) -> list[Mutant]:
    """All of a file with this text."""
    return [mutant for place in places_of(path, text) if (mutant := place.mutant(text))]


class _Found(NamedTuple):
    node: ast.expr | ast.stmt
    new: str
    scope: Scope
    lines: tuple[int, int]


def _in_body(body: list[ast.stmt], scope: Scope) -> Iterator[_Found]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_class = isinstance(statement, ast.ClassDef)
            inside = Scope(f"{scope.name}.{statement.name}".lstrip("."), scope.runs_at_import and is_class)
            if not isinstance(statement, ast.ClassDef):
                defaults = [*statement.args.defaults, *(one for one in statement.args.kw_defaults if one)]
                yield from _in_expressions(defaults, scope, statement)
            yield from _in_body(statement.body, inside)
            continue
        if isinstance(statement, ast.Assert | ast.Import | ast.ImportFrom) or _is_about_types(statement):
            continue
        yield from _of_statement(statement, scope)
        yield from _in_expressions(_expressions(statement), scope, statement)
        for field in ("body", "orelse", "finalbody"):
            yield from _in_body(getattr(statement, field, []), scope)
        for handler in getattr(statement, "handlers", []):
            yield from _in_body(handler.body, scope)
        for case in getattr(statement, "cases", []):
            yield from _in_body(case.body, scope)


def _is_about_types(statement: ast.stmt) -> bool:
    match statement:
        case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name.startswith("__") or _is_type(statement.value)
    return False


def _is_type(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name):
            return name in TYPES or name in ("Any", "Tensor", "Path") or (name[:1].isupper() and not name.isupper())
        case ast.Subscript(value=value):
            return _is_type(value)
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return any(map(_is_type, (left, right)))
    return False


def _expressions(statement: ast.stmt) -> list[ast.expr]:
    """Of the statement itself, or of the head of one that has a body."""
    match statement:
        case ast.Raise():
            return []
        case ast.AnnAssign(value=value):
            return [value] if value else []
        case ast.With(items=items):
            return [item.context_expr for item in items]
    return [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]


def _head(statement: ast.stmt, node: ast.AST) -> tuple[int, int]:
    """The lines that run when the node does: all of a simple statement, else those of the node."""
    if any(hasattr(statement, field) for field in ("body", "cases")):
        return getattr(node, "lineno", statement.lineno), getattr(node, "end_lineno", statement.lineno)
    return statement.lineno, statement.end_lineno or statement.lineno


def _of_statement(statement: ast.stmt, scope: Scope) -> Iterator[_Found]:
    lines = _head(statement, statement)
    match statement:
        case ast.Expr(value=ast.Call(func=called)) if _name(called) not in TEXTS:
            yield _Found(statement, "pass", scope, lines)
        case ast.AugAssign() | ast.Continue() | ast.Break() | ast.Raise() | ast.Delete():
            yield _Found(statement, "pass", scope, lines)
        case ast.Assign(targets=[target], value=value):
            names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
            if isinstance(target, ast.Attribute | ast.Subscript) or (
                isinstance(target, ast.Name) and target.id in names
            ):
                yield _Found(statement, "pass", scope, lines)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield _Found(statement, "return None", scope, lines)


def _in_expressions(nodes: list[ast.expr], scope: Scope, statement: ast.stmt) -> Iterator[_Found]:
    for node in nodes:
        if isinstance(node, ast.JoinedStr) or _is_type(node):
            continue
        for new in _changed(node):
            yield _Found(node, _source(new), scope, _head(statement, node))
        match statement:
            case ast.If(test=test) | ast.While(test=test) if node is test and not isinstance(
                node, ast.Compare | ast.UnaryOp
            ):
                yield _Found(node, _source(ast.UnaryOp(ast.Not(), node)), scope, _head(statement, node))
        yield from _in_expressions(_below(node), scope, statement)


def _below(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.Call(func=called, args=args, keywords=keywords):
            if _name(called) in TEXTS - {"Field"}:
                return []
            return [called, *args, *(one.value for one in keywords if one.arg not in ABOUT)]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            parts = [one for made in node.generators for one in (made.iter, *made.ifs)]
            return [*parts, *([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])]
        case ast.Lambda(body=body):
            return [body]
        case ast.Subscript(value=value, slice=ast.Slice(lower, upper, step)):
            return [value, *(bound for bound in (lower, upper, step) if bound)]
    return [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]


def _changed(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1) if value >= 1 else ast.UnaryOp(ast.USub(), ast.Constant(1 - value))
        case ast.Compare(ops=ops):
            for number, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield _with(node, "ops", number, other())
        case ast.BinOp(op=op, left=left, right=right) if type(op) in ARITHMETIC and not (
            _is_text(left) or _is_text(right)
        ):
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for number in range(len(values)):
                kept = values[:number] + values[number + 1 :]
                yield kept[0] if len(kept) == 1 else ast.BoolOp(op, kept)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield operand
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Call():
            yield from _other_calls(node)
        case ast.Subscript(value=value, slice=index, ctx=ast.Load()):
            if isinstance(index, ast.Slice) or (isinstance(index, ast.Tuple) and _has_slice(index)):
                yield value
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            for number, made in enumerate(node.generators):
                if made.ifs:
                    yield _with(
                        node, "generators", number, ast.comprehension(made.target, made.iter, [], made.is_async)
                    )


def _other_calls(call: ast.Call) -> Iterator[ast.expr]:
    name = _name(call.func)
    if name in TEXTS:
        return
    if name in TWINS:
        other = copy.deepcopy(call.func)
        setattr(other, "id" if isinstance(other, ast.Name) else "attr", TWINS[name])
        yield ast.Call(other, call.args, call.keywords)
    if name in FORGOTTEN and isinstance(call.func, ast.Attribute) and not call.args:
        yield call.func.value
    for number in range(0 if name in ALIKE else len(call.args) - 1):
        first, second = call.args[number : number + 2]
        if not any(isinstance(one, ast.Starred) or _is_text(one) for one in (first, second)):
            swapped = [*call.args[:number], second, first, *call.args[number + 2 :]]
            yield ast.Call(call.func, swapped, call.keywords)
    for number, keyword in enumerate(call.keywords):
        if keyword.arg and keyword.arg not in ABOUT:
            yield ast.Call(call.func, call.args, call.keywords[:number] + call.keywords[number + 1 :])


def _with(node: ast.expr, field: str, number: int, new: ast.AST) -> ast.expr:
    made = copy.copy(node)
    setattr(made, field, [new if place == number else one for place, one in enumerate(getattr(node, field))])
    return made


def _name(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _has_slice(index: ast.Tuple) -> bool:
    return any(isinstance(one, ast.Slice) or (isinstance(one, ast.Constant) and one.value is ...) for one in index.elts)


def _source(node: ast.expr) -> str:
    plain = isinstance(node, ast.Constant | ast.Name | ast.Call | ast.Subscript | ast.Attribute)
    text = ast.unparse(node)
    return text if plain or text.startswith(("[", "{")) else f"({text})"


def places_in(package: Path, rooms: list[str], without: list[str]) -> list[Place]:
    """Of all files of these rooms, which are folders or files of the package, but those."""
    return [
        place
        for file in sorted(_files(package, rooms) - _files(package, without))
        for place in places_of(file.relative_to(package).as_posix(), file.read_text())
    ]


def _files(package: Path, rooms: list[str]) -> set[Path]:
    found = {file for room in rooms for file in [*(package / room).rglob("*.py"), package / f"{room}.py"]}
    return {file for file in found if file.is_file()}
