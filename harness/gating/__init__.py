"""The regression gate: a baseline against a candidate, cell by cell and metric by metric.

policy.py says what is allowed, sources.py where both sides and the policy are read from, compare.py
gives verdicts, pairing.py says whether a difference could be noise, and text.py, markup.py and
machine.py show the outcome. Reads metrics documents only; imports neither torch nor MLflow.
"""
