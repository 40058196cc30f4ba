"""The controller process: who belongs to the cluster, dispatch, rescheduling, and the journal of
events."""
