"""The errors of pjax. Each says what is wrong, where, what was expected, and what to do."""


class PjaxError(Exception):
    """Base class of every error that pjax raises on purpose."""


class InputError(PjaxError, ValueError):
    """An argument cannot be used: a shape, a label, an option, a value that is not finite."""


class GraphError(PjaxError, ValueError):
    """The traced function cannot be solved: it does not depend on its parameters, or ends in no loss."""


class UnsupportedEquationError(PjaxError, NotImplementedError):
    """The traced function holds an equation without rule or derivative, or a loop of unknown length."""


class DataError(InputError):
    """A data file is missing, damaged, or holds something else than its name says."""


class DownloadError(PjaxError, OSError):
    """A file could not be downloaded or written. What has arrived is kept, for the next attempt."""


class NeglectedWarning(UserWarning):
    """A result neglects more than a small part of what its method is made of."""
