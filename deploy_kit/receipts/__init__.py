"""Receipts: one file for each measurement, append-only, checked against its own hash when read.

>>> receipt = new_receipt(kind="bench", host=Host(name="box-1"), subject={...}, samples=[...], ...)
>>> write_receipt("receipts", receipt)
>>> read_receipts("receipts", kind="bench").receipts
"""

from deploy_kit.receipts.model import SCHEMA_VERSION, Host, Receipt, new_receipt
from deploy_kit.receipts.store import ReceiptSet, read_receipt, read_receipts, write_receipt

__all__ = [
    "SCHEMA_VERSION",
    "Host",
    "Receipt",
    "ReceiptSet",
    "new_receipt",
    "read_receipt",
    "read_receipts",
    "write_receipt",
]
