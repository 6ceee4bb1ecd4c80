"""The transaction machine, the ledger and the receipts, as Python sees them."""

from __future__ import annotations

import coldproof
import pytest
from coldproof import errors

WHOLE = [(0, 4), (0, 8)]


def committed() -> coldproof.Transaction:
    machine = coldproof.Transaction()
    update(machine)
    return machine


def update(machine: coldproof.Transaction) -> int:
    id = machine.begin()
    machine.apply(id)
    machine.apply(id)
    machine.finish(id)
    machine.verify(id)
    machine.commit(id)
    return id


def test_a_whole_update_is_served_under_a_new_generation() -> None:
    machine = coldproof.Transaction()
    assert (machine.state, machine.generation, machine.may_serve) == ("vacant", 0, False)
    assert update(machine) == 1
    assert (machine.state, machine.generation, machine.may_serve) == ("idle", 1, True)
    assert update(machine) == 2
    assert machine.generation == 2


def test_ids_rise_and_late_events_are_refused() -> None:
    machine = committed()
    with pytest.raises(errors.TransactionError, match="ids rise"):
        machine.begin(id=1)
    id = machine.begin(id=9)
    with pytest.raises(errors.TransactionError, match="9 is open"):
        machine.begin(id=10)
    with pytest.raises(errors.TransactionError, match="late"):
        machine.apply(1)
    with pytest.raises(errors.TransactionError, match="out of order"):
        machine.commit(id)
    assert machine.state == "begun"


def test_an_abort_before_the_first_write_leaves_the_old_generation() -> None:
    machine = committed()
    assert machine.abort(machine.begin()) == "idle"
    assert (machine.generation, machine.may_serve) == (1, True)


def test_failed_is_terminal_until_a_full_load() -> None:
    machine = committed()
    id = machine.begin("partial")
    machine.apply(id)
    assert machine.abort(id) == "failed"
    assert (machine.id, machine.may_serve) == (id, False)
    with pytest.raises(errors.TransactionError, match="only a full load"):
        machine.begin("partial")
    update(machine)
    assert machine.may_serve


def test_a_sleeping_engine_takes_no_update() -> None:
    machine = committed()
    machine.sleep(keeps=True)
    with pytest.raises(errors.TransactionError, match="asleep"):
        machine.begin()
    machine.wake()
    assert machine.begin() == 2
    with pytest.raises(ValueError, match="residency"):
        machine.wake("drowsy")  # type: ignore[arg-type]


def test_the_ledger_takes_each_element_once() -> None:
    ledger = coldproof.Ledger([("q", WHOLE, "qkv", WHOLE)])
    ledger.record("q", [(0, 2), (0, 8)], "qkv", [(0, 2), (0, 8)])
    (missing,) = ledger.missing()
    assert "`q`" in missing
    with pytest.raises(errors.LedgerError):
        ledger.record("q", [(0, 2), (0, 8)], "qkv", [(0, 2), (0, 8)])
    with pytest.raises(errors.LedgerError, match="not promised"):
        ledger.record("k", WHOLE, "qkv", WHOLE)
    ledger.record("q", [(2, 4), (0, 8)], "qkv", [(2, 4), (0, 8)])
    assert (ledger.missing(), ledger.applications) == ([], 2)
    with pytest.raises(errors.LedgerError, match="same elements"):
        coldproof.Ledger([("q", WHOLE, "qkv", WHOLE), ("k", WHOLE, "qkv", WHOLE)])


def receipt(tp: int, **more: object) -> coldproof.Receipt:
    fields = {"applications": 1, "contents": {"w": f"{tp + 1:032x}"}, **more}
    return coldproof.Receipt((0, 0, tp), 1, **fields)  # type: ignore[arg-type]


def test_receipts_are_reconciled_rank_by_rank() -> None:
    expected = {(0, 0, tp): ({"w"}, 1) for tp in range(2)}
    identity = coldproof.reconcile(1, expected, [receipt(0), receipt(1)])
    assert identity == coldproof.reconcile(1, expected, [receipt(1), receipt(0)])
    assert len(identity) == 64
    wrong = {
        "gave no receipt": [receipt(0)],
        "two receipts": [receipt(0), receipt(1), receipt(1)],
        "attests nothing of `w`": [receipt(0), receipt(1, contents={})],
        "accepted 2 applications of 1": [receipt(0), receipt(1, applications=2)],
        "no slot took it": [receipt(0), receipt(1, unrouted=["x"])],
        "still holds `x`": [receipt(0), receipt(1, buffered=["x"])],
        "voted to abort": [receipt(0), receipt(1, ready=False)],
    }
    for text, receipts in wrong.items():
        with pytest.raises(errors.ReceiptError, match=text):
            coldproof.reconcile(1, expected, receipts)
    with pytest.raises(errors.ReceiptError, match="no digest"):
        receipt(0, contents={"w": "7"})
