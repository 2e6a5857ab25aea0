//! temporary
#[path = "../examples/dqn"]
mod dqn {
    pub mod backward;
    pub mod hyper;
    pub mod network;
    pub mod replay;
    pub mod train;
}
