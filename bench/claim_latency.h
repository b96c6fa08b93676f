// How soon an idle worker begins a job that another process made on the store that they share.
#pragma once

#include <memory>

#include "engine/plan.h"

namespace ae::bench {

// A PostgreSQL server of its own; one process makes jobs of this plan, one at a time, another is idle until it is told.
void claim_latency_row(const std::shared_ptr<const engine::Plan>& plan, bool quick);

}  // namespace ae::bench
