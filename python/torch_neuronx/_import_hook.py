"""Acts when somebody else imports a module, so that nothing heavy is imported before it is wanted."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types


def when_imported(trigger: str, extension: str) -> None:
    """Imports the module ``extension`` and calls its ``extend(module)`` right after ``trigger`` has been executed.

    Acts at once if ``trigger`` is imported already.
    """
    if trigger in sys.modules:
        importlib.import_module(extension).extend(sys.modules[trigger])
    else:
        sys.meta_path.insert(0, _Finder(trigger, extension))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as everybody else does, and wraps its loader."""

    def __init__(self, trigger: str, extension: str) -> None:
        self.trigger = trigger
        self.extension = extension

    def find_spec(
        self, name: str, path: object = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.trigger:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.extension)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, extension: str) -> None:
        self.loader = loader
        self.extension = extension

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self.loader.exec_module(module)
        importlib.import_module(self.extension).extend(module)

    def __getattr__(self, name: str) -> object:
        # get_source and the like: tracebacks and Dynamo read sources through the loader.
        return getattr(self.loader, name)
