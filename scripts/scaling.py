#!/usr/bin/env python3
"""Draws how work grows with the number of sources, from what the bench `scale` measured.

    cargo bench -p coldproof-checkpoint --bench scale
    python scripts/scaling.py target/criterion docs/scaling.svg

prints the table of docs/benchmarks.md and writes the drawing: both axes are logarithmic, and a
line of slope 1 through the first point of each series is what linear growth looks like.
"""

import json
import math
import sys
from pathlib import Path

SERIES = {"keys": "#1f77b4", "ledger": "#d95f02", "judge": "#2a7f3f"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 70, 90, 20, 50


def measured(criterion: Path, name: str) -> list[tuple[int, float]]:
    """Sources and the median time in milliseconds, in order."""
    points = []
    for folder in (criterion / "scale" / name).iterdir():
        if folder.name.isdigit():
            estimates = json.loads((folder / "new" / "estimates.json").read_text())
            points.append((int(folder.name), estimates["median"]["point_estimate"] / 1e6))
    return sorted(points)


def slope(points: list[tuple[int, float]]) -> float:
    """The exponent of growth, by least squares on logarithms: 1 is linear, 2 quadratic."""
    xs = [math.log(n) for n, _ in points]
    ys = [math.log(ms) for _, ms in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True))
    return over / sum((a - x) ** 2 for a in xs)


def table(series: dict[str, list[tuple[int, float]]]) -> str:
    """One row for each number of sources, and one with the exponents."""
    lines = ["| sources | " + " | ".join(series) + " |", "|---|" + "---|" * len(series)]
    for row in zip(*series.values(), strict=True):
        cells = [f"{ms:.3g} ms, {ms * 1e3 / n:.3g} µs each" for n, ms in row]
        lines.append(f"| {row[0][0]:,} | " + " | ".join(cells) + " |")
    exponents = [f"{slope(points):.2f}" for points in series.values()]
    lines.append("| exponent | " + " | ".join(exponents) + " |")
    return "\n".join(lines)


def drawing(series: dict[str, list[tuple[int, float]]]) -> str:
    """The points as an SVG."""
    every = [point for points in series.values() for point in points]
    low_n, high_n = (math.log10(pick(n for n, _ in every)) for pick in (min, max))
    low = math.floor(math.log10(min(ms for _, ms in every)))
    high = math.ceil(math.log10(max(ms for _, ms in every)))

    def at(n: float, ms: float) -> tuple[float, float]:
        x = LEFT + (math.log10(n) - low_n) / (high_n - low_n) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (math.log10(ms) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        _, y = at(10**low_n, 10.0**power)
        out.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{10.0**power:g} ms</text>')
    for n, _ in next(iter(series.values())):
        x, _ = at(n, 10.0**low)
        out.append(f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{n:,}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">sources</text>')
    for name, points in series.items():
        colour = SERIES[name]
        (first, ms), (last, end) = points[0], points[-1]
        (x1, y1), (x2, y2) = at(first, ms), at(last, ms * last / first)
        out.append(f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{colour}" stroke-dasharray="4 4"/>')
        for x, y in (at(*point) for point in points):
            out.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
        x, y = at(last, end)
        out.append(f'<text x="{x + 10}" y="{y + 4}" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    """Table to stdout, drawing to a file."""
    criterion, out = Path(sys.argv[1]), Path(sys.argv[2])
    series = {name: measured(criterion, name) for name in SERIES}
    print(table(series))
    out.write_text(drawing(series))


if __name__ == "__main__":
    main()
