"""The small models of the experiments, built around whatever attention layer the learner wrote."""
