"""The page of help."""

__all__ = ["HELP"]

HELP = """\
The list
  up down pgup pgdn home end   move (or j k)
  enter         open a run's page, fold a group; space folds too, z all
  /             filter: words that a run's name, state and alarms hold, all of
                them; or learning_rate < 1e-3 and state = failed. esc ends it
  s, S          sort by the next column; backwards
  g             group by the next: cell, nothing, an axis, the state

A run, or all of a group
  c             cancel, r retry: both ask first
  t             go to its tmux pane (there: ctrl-b d, or ctrl-b 0, comes back)

A run's page
  1 2 3 4, tab  curves (x: the best run's), configuration, log, rollouts
  left right    another curve      up down pgup pgdn  move the panel
  n, p          the next run, the one before      esc  back to the list

  waiting: the service holds the run back (its rate, its capacity): no failure
  stalled: no step for too long    silent: no heartbeat (beat) for launch.lease
  !: alarms; the line above the keys tells them         place: by the metric"""
