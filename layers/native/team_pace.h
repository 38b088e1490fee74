// Short parallel regions beside other processes: the caller computes alone while its team is late.
//
// A region ends when the last thread of the team arrives, and one that another process has pushed off its core arrives
// milliseconds late: a product of 50 microseconds then takes 3 milliseconds, where PyTorch, which computes the product
// of a row on one thread, notices nothing. So the caller measures how long it waits for the others. After a wait that
// no thread explains that only had to wake up, the regions of a while are the caller's alone; then the team is tried
// again, and each further late region makes the while longer. Results do not depend on it.
#pragma once

#include <omp.h>
#include <time.h>

#include <cstdint>

namespace {

constexpr int64_t kLateNs = 250'000;         // a thread that slept is there after 100 microseconds
constexpr int64_t kLongestNs = 2'000'000'000, kLongestWaits = 32;  // until the team is tried again
constexpr int64_t kShortWork = int64_t{1} << 22;  // multiplications: a millisecond for one thread, from memory

// Of one calling thread. Times are of one clock, in nanoseconds.
class TeamPace {
 public:
  bool is_alone(int64_t now) const { return now < alone_until_; }

  // After a region of the team that ended `now`: how long the caller took, and how much of that it waited.
  void ended(int64_t now, int64_t took, int64_t waited) {
    if (waited <= kLateNs) {
      alone_for_ = took < alone_for_ ? alone_for_ - took : 0;
      return;
    }
    const int64_t longest = waited < kLongestNs / kLongestWaits ? kLongestWaits * waited : kLongestNs;
    alone_for_ = 2 * alone_for_ + 4 * waited;
    if (alone_for_ > longest) alone_for_ = longest;
    alone_until_ = now + alone_for_;
  }

 private:
  int64_t alone_for_ = 0, alone_until_ = INT64_MIN;
};

// Whether a region of so many multiplications has a team, and what became of it. One object a region.
class PacedRegion {
 public:
  PacedRegion(int64_t work, int64_t parallel_work)
      : is_paced_(work > parallel_work && work <= kShortWork && omp_get_max_threads() > 1 && !omp_in_parallel()) {
    if (is_paced_) began_ = now();
    has_team_ = work > parallel_work && !(is_paced_ && pace().is_alone(began_));
    is_paced_ = is_paced_ && has_team_;
  }
  PacedRegion(const PacedRegion&) = delete;

  bool has_team() const { return has_team_; }

  // Called by every thread of the region: wait for the others; at the end of the region.
  void barrier() {
    const bool is_timed = is_paced_ && omp_get_thread_num() == 0;
    if (is_timed) arrived_ = now();
#pragma omp barrier
    if (is_timed) waited_ += now() - arrived_;
  }
  void arrive() {
    if (is_paced_ && omp_get_thread_num() == 0) arrived_ = now();
  }

  ~PacedRegion() {
    if (!is_paced_) return;
    const int64_t ended = now();
    pace().ended(ended, ended - began_, waited_ + ended - arrived_);
  }

 private:
  static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  }
  static TeamPace& pace() {
    static thread_local TeamPace own;
    return own;
  }

  bool is_paced_, has_team_ = false;
  int64_t began_ = 0, arrived_ = 0, waited_ = 0;
};

}  // namespace
