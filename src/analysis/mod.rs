//! Facts about order: hazards, liveness, reachability. The graph library stays in here.
