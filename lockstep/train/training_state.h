// All that a training needs to go on as if it had never been interrupted, under names of the
// program's choice: the parts of its checkpoints.
//
//   lockstep::TrainingState state;
//   state.add("model", ddp);                           // Or the module, if there is no ddp.
//   state.add("optimizer", adam, *model);              // Plain, sharded or shared.
//   state.add("schedule", schedule);
//   state.add("sampler", sampler);
//   state.add("generators", lockstep::RandomGenerators(world));
//   state.add("best_accuracy", best_accuracy);         // A variable of the program, equal on all ranks: a bool, an integer, a float or double, a text; or
// a tensor, whose values are copied into it. Saved as `value`.
// Errors, when it is loaded: misuse for another kind of value, an integer or float that does not
// fit the variable, and a tensor of another type or shape.
template <VariableType T>
void add(const std::string& name, T& value) {
  add_value(name, value);
}
void add(const std::string& name, at::Tensor& tensor);

// What the program itself describes: the state of a communication hook, say.
void add(const std::string& name, Stateful& state);

// In the order in which they were added.
const NamedStates& parts() const { return parts_; }
operator const NamedStates&() const { return parts_; }  // For Checkpointer.

private:
template <class T>
void add_value(const std::string& name, T& value);
void keep(const std::string& name, std::unique_ptr<Stateful> state);

std::vector<std::unique_ptr<Stateful>> owned_;
NamedStates parts_;
}
;

}  // namespace lockstep
