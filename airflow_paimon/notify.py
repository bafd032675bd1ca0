"""Who hears of an approval, and who may answer it: the connection says who there is, the form chooses among them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier

from airflow_paimon.core.errors import InvalidInputError, UnsafeOperationError
from airflow_paimon.core.table.options import requested_duration
from airflow_paimon.shown.markdown import escape

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_paimon.hooks.paimon import PaimonHook

log = logging.getLogger("airflow.task")


def choose_notifiers(
    configured: Mapping[str, Mapping[str, Any]], names: Sequence[str] | None, paimon_conn_id: str
) -> list[BaseNotifier]:
    """Make the notifiers of these names; all of them for None, and none for an empty list.

    ``configured``: the connection's ``notify``, such as ``{"oncall": {"class":
    "airflow.providers.slack.notifications.slack_webhook.SlackWebhookNotifier", "text": "{{ paimon.text }}"}}``: what is
    beside ``class`` are its arguments.

    Raises:
        InvalidInputError: there is no notifier of that name, or its class or arguments are wrong.
    """
    wanted = list(configured) if names is None else list(names)
    unknown = [name for name in wanted if name not in configured]
    if unknown:
        raise InvalidInputError(
            f"notify: connection {paimon_conn_id!r} has no notifier {', '.join(map(repr, unknown))}; it has: "
            f"{', '.join(configured) or 'none'} (its extra 'notify')"
        )
    return [_make(name, configured[name], paimon_conn_id) for name in wanted]


def choose_approvers(
    configured: Sequence[str] | None, names: Sequence[str] | None, paimon_conn_id: str
) -> list[str] | None:
    """Return the ids of the users who may answer; None for everybody who may see the task.

    A form narrows the connection's list and never widens it.

    Raises:
        InvalidInputError: the form names somebody whom the connection doesn't.
    """
    wanted = [name for name in names or () if name.strip()]
    if not configured:
        return wanted or None
    strangers = [name for name in wanted if name not in configured]
    if strangers:
        raise InvalidInputError(
            f"approvers: connection {paimon_conn_id!r} doesn't let {', '.join(map(repr, strangers))} approve; it lets: "
            f"{', '.join(configured)}"
        )
    return wanted or list(configured)


def reminder_lead(configured: str | None, requested: str | None, timeout: timedelta | None) -> timedelta | None:
    """Return how long before the end of an approval its notifiers hear again; None for never.

    ``requested``: the form's ``remind_before``. It wins over the connection's, which counts where it is shorter than
    the time to answer; a quarter of that time otherwise.

    Raises:
        InvalidInputError: neither a duration nor ``never``, or the form's is not shorter than the time to answer.
    """
    text = (requested or configured or "").strip()
    if timeout is None or text.lower() == "never":
        return None
    lead = requested_duration(text, "remind_before") if text else timeout / 4
    if timedelta(0) < lead < timeout:
        return lead
    if not requested:
        return timeout / 4
    raise InvalidInputError(
        f"remind_before: {text!r} must be shorter than the {timeout} within which the approval is answered; or: never"
    )


def asks_four_eyes(hook: PaimonHook, tables: Sequence[str]) -> bool:
    """Whether the connection asks for four eyes, or one of these tables, ``db.t[$branch_b]``, by its option.

    Raises:
        InvalidInputError: a switch is neither true nor false. NotFoundError: no such table.
    """
    from airflow_paimon.core.publish.approval import table_requires_four_eyes

    return hook.four_eyes or any(table_requires_four_eyes(hook.get_table(table)) for table in tables)


def four_eyes_note(required: bool, requester: str | None) -> str:
    """Say to the approver who can't approve.

    Raises:
        InvalidInputError: the approval is switched off.
        UnsafeOperationError: nobody is known to have triggered the run.
    """
    if not required:
        raise InvalidInputError(
            "The four-eyes rule needs an approval: switch it on. The rule comes from the form, the Paimon connection "
            "(four_eyes), or the table (option airflow-paimon.four-eyes)"
        )
    if requester is None:
        raise UnsafeOperationError(
            "The four-eyes rule can't be applied: Airflow doesn't report who triggered this run. Trigger it as a user, "
            "from Airflow's page or its API"
        )
    return f"{escape(requester)} triggered this run, so a second person has to approve it."


def send(notifiers: Sequence[BaseNotifier], message: Mapping[str, Any], context: Context) -> None:
    """Send a message, as ``paimon`` in the templates of the notifiers. One that fails is logged and stops nothing."""
    for notifier in notifiers:
        try:
            notifier({**context, "paimon": dict(message)})
        except Exception as error:  # its templates are the user's
            log.warning("%s can't notify: %s", type(notifier).__name__, error)


def _make(name: str, arguments: Mapping[str, Any], paimon_conn_id: str) -> BaseNotifier:
    given = dict(arguments)
    path = str(given.pop("class", ""))
    module, _, attribute = path.rpartition(".")
    where = f"notify: notifier {name!r} of connection {paimon_conn_id!r}"
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInputError(f"{where}: class {path!r} can't be imported: {error}") from None
    if not (isinstance(found, type) and issubclass(found, BaseNotifier)):
        raise InvalidInputError(f"{where}: {path} is not a notifier of Airflow's (a BaseNotifier)")
    try:
        return found(**given)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{where}: {error}") from None
