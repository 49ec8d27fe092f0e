"""What sandboxes have of the modules of checks: no oracle, which would be a solution.

There are the functions that run beside a student's object (course_pkg.checking.batched), the rules
of exercises, and what both need. Checks, and what they compare with, stay with the grader.
"""

import ast

from course_pkg.checking.rules.uses import globals_of

_PACKAGE = "course_pkg.checks"
_ROOTS = {"together", "forbid"}  # decorates such a function; states a rule

Modules = dict[str, str]


def reduced(sources: Modules) -> Modules:
    """Leave in modules of checks what must run in the students' process.

    Args:
        sources: the text of each module, by its name in course_pkg.checks.
    """
    modules = {name: _Module(text) for name, text in sources.items()}
    todo = [(name, part) for name, module in modules.items() for part in module.roots()]
    while todo:
        name, statement = todo.pop()
        module = modules[name]
        if id(statement) in module.kept:
            continue
        module.kept.add(id(statement))
        for used in globals_of(statement):
            todo += [(name, part) for part in module.defined.get(used, [])]
            if (source := module.imported.get(used)) is not None:
                module.names.add(used)
                package, _, other = source[0].rpartition(".")
                if package == _PACKAGE and other in modules:
                    todo += modules[other].asked_for(other, source[1], modules)
    return {name: module.text() for name, module in modules.items()}


class _Module:
    """A module of checks: its statements, and which of them are kept."""

    def __init__(self, text: str):
        self.tree = ast.parse(text)
        self.kept: set[int] = set()  # statements that import nothing, by id
        self.names: set[str] = set()  # of imports that are kept
        self.defined: dict[str, list[ast.stmt]] = {}
        self.imported: dict[str, tuple[str, str]] = {}  # module and name there, by the name here
        for statement in self.tree.body:
            match statement:
                case ast.ImportFrom(str(module), names):
                    self.imported |= {a.asname or a.name: (module, a.name) for a in names}
                case ast.Import(names):
                    self.imported |= {
                        a.asname or a.name.partition(".")[0]: (a.name, "") for a in names
                    }
                case _:
                    for name in _bound(statement):
                        self.defined.setdefault(name, []).append(statement)

    def roots(self) -> list[ast.stmt]:
        """List what is needed in any case."""
        return [statement for statement in self.tree.body if _is_root(statement)]

    def asked_for(
        self, own: str, name: str, modules: "dict[str, _Module]"
    ) -> list[tuple[str, ast.stmt]]:
        """List what another module needs when it imports a name, with the module that has it."""
        if name in self.imported:
            self.names.add(name)
            package, _, other = self.imported[name][0].rpartition(".")
            if package == _PACKAGE and other in modules:
                return modules[other].asked_for(other, self.imported[name][1], modules)
        return [(own, statement) for statement in self.defined.get(name, [])]

    def text(self) -> str:
        """Write what is kept as a module."""
        body: list[ast.stmt] = []
        for statement in self.tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                found = [a for a in statement.names if _bound_by(a) in self.names]
                if found:
                    statement.names = found
                    body.append(statement)
            elif id(statement) in self.kept:
                body.append(statement)
        return ast.unparse(ast.Module(body, [])) + "\n"


def _is_root(statement: ast.stmt) -> bool:
    match statement:
        case ast.FunctionDef(decorator_list=decorators):
            return any(isinstance(d, ast.Name) and d.id in _ROOTS for d in decorators)
        case ast.Expr() | ast.For():
            called = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
            return any(isinstance(f, ast.Name) and f.id in _ROOTS for f in called)
    return False


def _bound(statement: ast.stmt) -> set[str]:
    """List the names that a statement which imports nothing gives a module."""
    match statement:
        case ast.FunctionDef(name) | ast.ClassDef(name):
            return {name}
        case ast.Assign() | ast.AnnAssign():
            nodes = ast.walk(statement)
            return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return set()


def _bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]
