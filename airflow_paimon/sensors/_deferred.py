"""What the sensors share: they wait in the worker or in the triggerer, by the trigger that they make."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_paimon import settings
from airflow_paimon._compat import BaseSensorOperator, PokeReturnValue
from airflow_paimon.arguments import StrictTemplates, is_blank
from airflow_paimon.core.errors import InvalidInputError, PaimonError
from airflow_paimon.links import store_links
from airflow_paimon.task_run import airflow_error, answer_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.triggers.waits import Check


class DeferrableSensor(StrictTemplates, BaseSensorOperator):
    """Checks again and again in a worker, or once, and then the trigger goes on. ``check``: a function of a module."""

    ui_color = "#e8f0fe"
    check: Check

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make every argument of a sensor's own a template field."""
        super().__init_subclass__(**kwargs)
        own = inspect.signature(cls.__init__).parameters.values()
        cls.template_fields = ("paimon_conn_id", *(one.name for one in own if one.kind is one.KEYWORD_ONLY))

    def __init__(
        self,
        *,
        paimon_conn_id: str = settings.CONN_ID,
        deferrable: bool = settings.DEFERRABLE,
        poke_interval: timedelta | float = settings.POKE_INTERVAL,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.paimon_conn_id = paimon_conn_id
        self.deferrable = deferrable

    @abstractmethod
    def _condition(self) -> dict[str, Any]:
        """Return the arguments of ``check`` besides the hook, as plain JSON.

        Raises:
            InvalidInputError: an argument is wrong.
        """

    def _result_of(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return what was found, or raise if it is an end in vain; for subclasses."""
        return found

    @property
    def _timeout_seconds(self) -> float:
        """The seconds after which Airflow ends the wait in the triggerer."""
        return float(self.timeout)

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once; if there is nothing yet, and this sensor is deferrable, go on in the triggerer."""
        condition, found = self._poll()
        if found is None and self.deferrable:
            from airflow_paimon.triggers.waits import SensorTrigger

            trigger = SensorTrigger(
                check=f"{self.check.__module__}:{self.check.__name__}",
                condition=condition,
                paimon_conn_id=self.paimon_conn_id,
                poll_interval=float(self.poke_interval),
            )
            self.defer(
                trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self._timeout_seconds)
            )
        return PokeReturnValue(is_done=found is not None, xcom_value=found)

    def execute(self, context: Context) -> Any:
        """Wait here, or poll once and go on waiting in the triggerer."""
        store_links(self, context)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Take the trigger's event: what was found, or an error."""
        return self._result_of(answer_of(event))

    def _poll(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Check once; returns the condition, and what was found."""
        from airflow_paimon.hooks.paimon import PaimonHook

        try:
            condition = self._condition()
            found, notes = self.check(PaimonHook(self.paimon_conn_id), **condition)
        except PaimonError as error:
            raise airflow_error(error) from error
        for note in notes:
            self.log.info("%s", note)
        return condition, None if found is None else self._result_of(found)


def not_blank(name: str, value: Any) -> Any:
    """Refuse a template that rendered to nothing: the condition would vanish, and the sensor would not wait for it."""
    if value is not None and is_blank(value):
        raise InvalidInputError(f"{name} rendered to {value!r}; leave the argument out where it does not apply")
    return value
