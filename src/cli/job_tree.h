// JobTree: a job and the child jobs below it, for commands with --tree.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "app/api_client.h"
#include "base/error.h"
#include "cli/terminal.h"
#include "json/value.h"

namespace ae::cli {

struct JobTree {
  struct Job {
    std::string id, parent;  // parent: "" = the first job
    std::size_t depth = 0;   // levels below the first job
  };
  // Each job before its children; the children in the order of their calls.
  std::vector<Job> jobs;
  bool is_complete = true;  // false: the tree has more jobs than are read
};
// Fails as GET /api/jobs.
Result<JobTree> read_tree(app::ApiClient& client, const std::string& id);

// The heading of a child in a listing; "" = the first job.
std::string tree_heading(const JobTree::Job& job, const Paint& paint);
// {jobs: [{depth, parent?, view}], more}: `views` are of the same jobs.
Value tree_json(const JobTree& tree, std::vector<Value> views);
// Notes on stderr that jobs are missing.
void note_if_incomplete(const JobTree& tree, Terminal& terminal);

}  // namespace ae::cli
