"""Engine `echo`: the simulated engine, and the bodies of its answers on each endpoint."""
