# ruff: noqa: D103 - a page to be read in one go
"""Check with the standard library that a tensor is not completely positive: FILE.json -> VALID.

A certificate holds the entries A (indices from 0), a form p and a proof of p >= 0 for x >= 0. Sums
A of powers u^d with u >= 0 have <p, A> = sum p(u) >= 0; VALID: <p, A> < 0, all without rounding.
"""

import hashlib
import json
import sys
from fractions import Fraction
from functools import reduce
from itertools import combinations, combinations_with_replacement, permutations
from math import lcm, prod


def form(terms):  # {sorted indices of a monomial: coefficient}
    out = {}
    for a, c in terms:
        out[a] = out.get(a, 0) + c
    return out


def times(p, q):
    return form((tuple(sorted(a + b)), x * y) for a, x in p.items() for b, y in q.items())


def sum_power(n, k):  # (x_1 + .. + x_n)^k
    return reduce(times, [{(i,): 1 for i in range(n)}] * k, {(): 1})


def semidefinite(m):  # LDL' of integers without fractions: every division is exact
    scale, last = lcm(*(q.denominator for row in m for q in row)), 1
    m = [[int(q * scale) for q in row] for row in m]
    for k, row in enumerate(m):
        if row[k] < 0 or (row[k] == 0 and any(row[k:])):
            return False
        for r in m[k + 1 :] if row[k] else ():
            r[k:] = [(row[k] * x - r[k] * y) // last for x, y in zip(r[k:], row[k:], strict=True)]
        last = row[k] or last
    return True


def gram(p, n, d, proof):  # (sum x)^(D - d) p = sum_j x^factor (sum x)^r b' Q b
    p, D = times(p, sum_power(n, proof["degree"] - d)), proof["degree"]
    for block in proof["blocks"]:
        basis = list(combinations_with_replacement(range(n), block["degree"]))
        s, r = range(len(basis)), D - len(block["factor"]) - 2 * block["degree"]
        upper = combinations_with_replacement(s, 2)
        Q = dict(zip(upper, map(Fraction, block["gram"]), strict=True))
        Q |= {(j, i): q for (i, j), q in Q.items()}
        squares = form((tuple(sorted(basis[i] + basis[j])), q) for (i, j), q in Q.items())
        squares = times(squares, {tuple(block["factor"]): -1})
        p = form([*p.items(), *times(squares, sum_power(n, r)).items()])
        if not semidefinite([[Q[i, j] for j in s] for i in s]):
            return False
    return not any(p.values())


def means(p, n, d, proof):  # sum c_a x^a >= c_b x^b with b = sum w_a a, as integer powers
    w = {tuple(a): Fraction(q) for a, q in proof["weights"]}
    (b,), k = (a for a in p if p[a] < 0), lcm(*(q.denominator for q in w.values()))
    average = all(sum(q * a.count(i) for a, q in w.items()) == b.count(i) for i in range(n))
    fit = average and sum(w.values()) == 1 and all(w[a] > 0 and p.get(a, 0) > 0 for a in w)
    return fit and prod((p[a] / w[a]) ** int(k * w[a]) for a in w) >= (-p[b]) ** k


def subdivision(p, n, d, proof):  # bisect edges (keep, move) until no coefficient is negative
    stack, edges = [p], set(permutations(range(n), 2))
    for edge in proof["splits"]:
        p = stack.pop()
        if tuple(edge) not in edges if edge else min(p.values()) < 0:
            return False
        for keep, move in (edge[::-1], edge) if edge else ():
            x = [{(i,): 2} for i in range(n)]  # twice the half's coordinates
            x[keep], x[move] = {(keep,): 2, (move,): 1}, {(move,): 1}
            pieces = (reduce(times, (x[i] for i in a), {(): c}) for a, c in p.items())
            stack.append(form(term for q in pieces for term in q.items()))
    return not stack


def faces(p, n, d, proof):  # p >= margin on faces, a strong monomial wherever none is near
    margin, t, weight = Fraction(proof["margin"]), Fraction(proof["threshold"]), sum_power(n, d)
    mass, low = (1 - n * t) ** d, max([0, *(-p[a] / weight[a] for a in p)])
    strong = [set(a) for a in p if p[a] > 0 and p[a] * t**d >= low]
    parts = [face["variables"] for face in proof["faces"]]
    subsets = (set(s) for size in range(n) for s in combinations(range(n), size + 1))
    covered = all(any(s <= {*f} for f in parts) or any(a <= s for a in strong) for s in subsets)
    for f, face in zip(parts, proof["faces"], strict=True):
        inside = [(tuple(sorted(map(f.index, a))), p[a]) for a in p if set(a) <= set(f)]
        lift = [(a, -margin * c) for a, c in sum_power(len(f), d).items()]
        if not holds(form(inside + lift), len(f), d, face["proof"]):
            return False
    return covered and margin > 0 and 0 < n * t < 1 and margin * mass >= low * (1 - mass)


def holds(p, n, d, proof):
    methods = {"gram": gram, "means": means, "subdivision": subdivision, "faces": faces}
    return methods[proof["method"]](p, n, d, proof)


def valid(data):
    digest, n, d = data.pop("sha256"), data["dimension"], data["order"]
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    A, p = ({tuple(a): Fraction(c) for a, c in data[key]} for key in ("tensor", "form"))
    value, listed = sum(p[a] * A.get(a, 0) for a in p), combinations_with_replacement(range(n), d)
    intact = digest == hashlib.sha256(text.encode()).hexdigest() and {*A, *p} <= set(listed)
    return intact and value == Fraction(data["value"]) < 0 and holds(p, n, d, data["proof"])


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        try:
            answer = valid(json.load(file))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            answer = print("damaged:", error)
    print("VALID" if answer else "INVALID")
    sys.exit(not answer)
