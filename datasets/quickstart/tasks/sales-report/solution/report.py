"""Write report.json from the sales files in the working directory."""

import csv
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path


def rows(name, delimiter):
    """Return the rows of a CSV file."""
    with open(name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def paid_orders(rates):
    """Return the orders that count: id -> (month, product, euro)."""
    last = {}
    for row in rows("shop_north.csv", ","):
        amount = Decimal(row["unit_price"]) * int(row["qty"])
        last[row["order"]] = row["status"], row["date"][:7], row["product"], amount
    for row in rows("shop_south.csv", ";"):
        _, month, year = row["day"].split(".")
        amount = Decimal(row["price"]) * int(row["pieces"]) / rates[row["cur"]]
        last[row["id"]] = row["status"], f"{year}-{month}", row["sku"], amount
    return {order: rest for order, (status, *rest) in last.items() if status == "paid"}


def refunds():
    """Yield the refunds on whole lines."""
    for line in Path("refunds.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line, parse_float=Decimal)
        except ValueError:
            continue


def euro(amount):
    """Return an amount as it goes into the report."""
    return float(round(amount, 2))


def main():
    """Write report.json."""
    rates = {
        name: Decimal(str(rate))
        for name, rate in json.loads(Path("rates.json").read_text()).items()
    }
    orders = paid_orders(rates)
    months, products = defaultdict(Decimal), defaultdict(Decimal)
    for month, product, amount in orders.values():
        months[month] += amount
        products[product] += amount
    refunded, unknown = Decimal(0), set()
    for refund in refunds():
        if refund["order"] in orders:
            refunded += Decimal(refund["amount"]) / rates[refund["cur"]]
        else:
            unknown.add(refund["order"])
    gross = sum(months.values())
    report = {
        "orders": len(orders),
        "gross_eur": euro(gross),
        "refunds_eur": euro(refunded),
        "net_eur": euro(gross - refunded),
        "gross_by_month": {month: euro(amount) for month, amount in sorted(months.items())},
        "best_product": max(products, key=products.get),
        "unknown_refunds": sorted(unknown),
    }
    Path("report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
