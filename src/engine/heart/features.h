// The features: how common code calls a feature, and how features call each other.
//
// A feature takes part in a job through its functions of Applier (applier.h), of Decider
// (decider.h) and of requests (request.h). Its other functions are in its header, listed below. No
// feature includes the header of another one, and no header includes this one.
#pragma once

#include "engine/children/children.h"
#include "engine/code/code.h"
#include "engine/confirm/confirm.h"
#include "engine/loop/loop.h"
#include "engine/loop/thread.h"
#include "engine/planner/planner.h"
#include "engine/policy/policy.h"
#include "engine/questions/questions.h"
#include "engine/replan/replan.h"
#include "engine/values/recorded_value.h"
