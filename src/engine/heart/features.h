// The features: how the decisions and events of every job reach them, and how one feature reaches another.
//
// A feature takes part in a job by its functions of Applier (applier.h), of Decider (decider.h) and of requests (take.h). What
// else others call of it is in its header, one line below. No feature includes the header of another, and no header includes
// this one.
#pragma once

#include "engine/confirm/confirm.h"
#include "engine/loop/loop.h"
#include "engine/planner/planner.h"
#include "engine/questions/questions.h"
#include "engine/replan/replan.h"
