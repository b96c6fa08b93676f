// The query of GET /api/jobs for the jobs of an agent that have not ended.
//
// Threads: a pure function.
#pragma once

#include <string>
#include <string_view>

#include "api/target.h"
#include "log/field_names.h"

namespace ae::api {

// `cursor`: of the page before; "" = the first page.
inline QueryPairs live_jobs_query(const std::string& agent, const std::string& cursor) {
  constexpr char kPage[] = "500";
  QueryPairs query{{field::agent, agent}, {"limit", kPage}};
  if (!cursor.empty()) query.emplace_back("cursor", cursor);
  for (const char* status : {"queued", "running", "waiting", "parked"}) {
    query.emplace_back("status", status);
  }
  return query;
}

}  // namespace ae::api
