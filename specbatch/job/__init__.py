"""One job from table to table: the only room that knows all the others."""
