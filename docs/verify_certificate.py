# ruff: noqa: D103 - a page to be read in one go
"""Check with the standard library that a tensor is not completely positive: FILE.json -> VALID.

A certificate holds the entries A (indices from 0), a form p and a proof of p >= 0 for x >= 0. Sums
A of powers u^d with u >= 0 have <p, A> = sum p(u) >= 0; VALID: <p, A> < 0, all without rounding.
Texts that ask for more work than any real proof does are not believed.

Call: python3 verify_certificate.py FILE.json; the exit code is 0 for VALID, 1 for all else.
"""

import hashlib
import json
import re
import sys
from fractions import Fraction
from functools import reduce
from itertools import combinations_with_replacement, permutations
from math import comb, factorial, lcm, prod

FORMAT = "tensoralg certificate: not completely positive"


def check(fits, what):
    if not fits:
        raise ValueError(f"{what} cannot be read, or is too large")


def rational(text):  # "p/q" and no other way to write a number
    check(isinstance(text, str) and re.fullmatch("-?[0-9]+(/[0-9]*[1-9][0-9]*)?", text), "a number")
    return Fraction(text)


def integer(value, low=0, high=1000):
    check(type(value) is int and low <= value <= high, "an integer")
    return value


def index(value, n):
    return tuple(integer(i, 0, n - 1) for i in value)


def within(n, k, work=1, most=10**6):  # few enough monomials of degree k
    check(comb(max(n + k - 1, 0), k) * work <= most, "a form")


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
    D = integer(proof["degree"])
    check(d <= D or not any(p.values()), "a degree")
    within(n, D)
    within(n, D, D * max(D - d + 1, 0), 10**8)
    p = times(p, sum_power(n, max(D - d, 0)))
    for block in proof["blocks"]:
        g, t = index(block["factor"], n), integer(block["degree"], 0, D // 2)
        basis = list(combinations_with_replacement(range(n), t))
        s, r = range(len(basis)), integer(D - len(g) - 2 * t)
        check(len(block["gram"]) == comb(len(basis) + 1, 2), "a block")
        upper = combinations_with_replacement(s, 2)
        Q = dict(zip(upper, map(rational, block["gram"]), strict=True))
        Q |= {(j, i): q for (i, j), q in Q.items()}
        squares = form((tuple(sorted(basis[i] + basis[j])), q) for (i, j), q in Q.items())
        squares = times(squares, {g: -1})
        p = form([*p.items(), *times(squares, sum_power(n, r)).items()])
        if not semidefinite([[Q[i, j] for j in s] for i in s]):
            return False
    return not any(p.values())


def means(p, n, d, proof):  # sum c_a x^a >= c_b x^b with b = sum w_a a, as integer powers
    w = {index(a, n): rational(q) for a, q in proof["weights"]}
    (b,), k = (a for a in p if p[a] < 0), lcm(*(q.denominator for q in w.values()))
    check(len(w) == len(proof["weights"]) and k <= 10**4, "a mean")
    average = all(sum(q * a.count(i) for a, q in w.items()) == b.count(i) for i in range(n))
    fit = average and sum(w.values()) == 1 and all(w[a] > 0 and p.get(a, 0) > 0 for a in w)
    return fit and prod((p[a] / w[a]) ** int(k * w[a]) for a in w) >= (-p[b]) ** k


def subdivision(p, n, d, proof):  # bisect edges (keep, move) until no coefficient is negative
    stack, edges = [p], set(permutations(range(n), 2))
    splits = [edge if edge is None else index(edge, n) for edge in proof["splits"]]
    within(n, d, n, 10**7)
    within(n, d, len(splits), 3 * 10**8)
    for edge in splits:
        p = stack.pop()
        if edge not in edges if edge is not None else min(p.values(), default=0) < 0:
            return False
        for keep, move in (edge[::-1], edge) if edge else ():
            x = [{(i,): 2} for i in range(n)]  # twice the half's coordinates
            x[keep], x[move] = {(keep,): 2, (move,): 1}, {(move,): 1}
            pieces = (reduce(times, (x[i] for i in a), {(): c}) for a, c in p.items())
            stack.append(form(term for q in pieces for term in q.items()))
    return not stack


def orderings(a):  # d! / prod(counts!)
    return factorial(len(a)) // prod(factorial(a.count(i)) for i in {*a})


def covered(n, parts, strong):  # every set of variables is in a face or contains a strong monomial
    sets = {frozenset()}
    for part in parts or [()]:  # a set in no face takes from each one variable beyond it
        beyond, grown = set(range(n)) - set(part), {s for s in sets if not s <= set(part)}
        for s in sets - grown:
            grown |= {s | {i} for i in beyond if not any(a <= s | {i} for a in strong)}
            check(len(grown) <= 2 * 10**5, "the set of faces")
        sets = grown
    return not sets


def faces(p, n, d, proof, depth):  # p >= margin on faces, a strong monomial wherever none is near
    margin, t = rational(proof["margin"]), rational(proof["threshold"])
    mass, low = (1 - n * t) ** d, max([0, *(-p[a] / orderings(a) for a in p)])
    strong = [set(a) for a in p if p[a] > 0 and p[a] * t**d >= low]
    parts = [index(face["variables"], n) for face in proof["faces"]]
    for f, face in zip(parts, proof["faces"], strict=True):
        inside = [(tuple(sorted(map(f.index, a))), p[a]) for a in p if set(a) <= set(f)]
        within(len(f), d, len(f), 10**7)
        powers = combinations_with_replacement(range(len(f)), d)
        lift = [(a, -margin * orderings(a)) for a in powers]
        if not holds(form(inside + lift), len(f), d, face["proof"], depth - 1):
            return False
    fit = margin > 0 and 0 < n * t < 1 and margin * mass >= low * (1 - mass)
    return fit and covered(n, parts, strong)


def scaled(p, n, d, proof, depth):  # p >= 0 exactly when p(s_1 x_1, .., s_n x_n) >= 0
    s = [rational(q) for q in proof["scales"]]
    check(len(s) == n and all(q > 0 for q in s), "the scales")
    p = {a: c * prod(s[i] for i in a) for a, c in p.items()}
    return holds(p, n, d, proof["proof"], depth - 1)


def holds(p, n, d, proof, depth=4):
    if proof["method"] in ("faces", "scaled") and depth:
        return {"faces": faces, "scaled": scaled}[proof["method"]](p, n, d, proof, depth)
    methods = {"gram": gram, "means": means, "subdivision": subdivision}
    return methods[proof["method"]](p, n, d, proof)


def valid(data):
    check(data["format"] == FORMAT and data["version"] == 1 and "kind" in data, "this text")
    digest, n, d = data.pop("sha256"), integer(data["dimension"]), integer(data["order"], 1)
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    A, p = ({index(a, n): rational(c) for a, c in data[key]} for key in ("tensor", "form"))
    check(len(A) + len(p) == len(data["tensor"]) + len(data["form"]), "an entry given twice")
    check(all(len(a) == d and list(a) == sorted(a) for a in (*A, *p)), "an index")
    value = sum(p[a] * A.get(a, 0) for a in p)
    intact = digest == hashlib.sha256(text.encode()).hexdigest()
    return intact and value == rational(data["value"]) < 0 and holds(p, n, d, data["proof"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            answer = valid(json.load(file))
    except OSError as error:
        sys.exit(str(error))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        answer = print("damaged:", type(error).__name__, error)
    print("VALID" if answer else "INVALID")
    sys.exit(not answer)
