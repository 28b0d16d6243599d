"""How the command says that it can't: what was wrong, and what to do about it."""


class CommandError(Exception):
    """The command ends with status 1 and these words. `advice` says what would be right."""

    def __init__(self, problem: str, advice: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice
