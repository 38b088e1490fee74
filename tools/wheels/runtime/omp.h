// What kernels ask OpenMP for; openmp.cpp answers, by the OpenMP runtime that the process has.
#pragma once

extern "C" {
int omp_get_max_threads();
int omp_get_num_threads();
int omp_get_thread_num();
int omp_in_parallel();
}
