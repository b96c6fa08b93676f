// golden_jobs: the jobs whose logs are stored in testdata/golden. Together they have every type of
// event that the log of a job should cover. A new job is added at the end; the stored logs stay.
// For tests only.
#pragma once

#include <list>

#include "engine/fixtures/job_fixture_test.h"

namespace ae::engine::testing {

struct GoldenJob {
  const char* name;
  JobFixture job;
  bool erased = false;  // stored without its values, as after `redact --all`
};

std::list<GoldenJob> golden_jobs();

}  // namespace ae::engine::testing
